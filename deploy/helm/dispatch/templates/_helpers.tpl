{{- define "dispatch.labels" -}}
app.kubernetes.io/name: dispatch
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end -}}

{{- define "dispatch.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* A Deployment and its PodDisruptionBudget: root, name, command, resources, replicas (a text: an autoscaler decides), env, and mounts and volumes as texts. */}}
{{- define "dispatch.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .root.Release.Name }}-{{ .name }}
  labels: {{- include "dispatch.labels" . | nindent 4 }}
spec:
  {{- if not (kindIs "string" .replicas) }}
  replicas: {{ .replicas }}
  {{- end }}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  selector:
    matchLabels: {{- include "dispatch.labels" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "dispatch.labels" . | nindent 8 }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ add .root.Values.drainSeconds 20 }}
      securityContext: {runAsNonRoot: true, runAsUser: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- include "dispatch.labels" . | nindent 14 }}
      containers:
        - name: dispatch
          image: {{ include "dispatch.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args: {{- toYaml .command | nindent 12 }}
          securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
          env:
            # The name in consoles and metrics is that of the pod.
            - {name: DISPATCH_INSTANCE, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: DISPATCH_BROKER, value: {{ .root.Values.broker.url | quote }}}
            - {name: DISPATCH_ADMIN, value: "0.0.0.0:{{ .root.Values.admin.port }}"}
            - {name: DISPATCH_ADMIN_TOKENS, value: /etc/dispatch/admin/tokens.json}
            {{- if .root.Values.broker.tokenSecret }}
            - {name: DISPATCH_TOKEN_FILE, value: /etc/dispatch/broker-token/token}
            {{- end }}
            {{- if .root.Values.broker.trustSecret }}
            - {name: DISPATCH_TRUST_CERTS, value: /etc/dispatch/broker-trust/ca.crt}
            {{- end }}
            {{- range $key, $value := .env }}
            - {name: {{ $key }}, value: {{ $value | quote }}}
            {{- end }}
          ports: [{name: admin, containerPort: {{ .root.Values.admin.port }}}]
          startupProbe: {httpGet: {path: /readyz, port: admin}, periodSeconds: 2, failureThreshold: 60}
          readinessProbe: {httpGet: {path: /readyz, port: admin}, periodSeconds: 5, timeoutSeconds: 3}
          livenessProbe: {httpGet: {path: /healthz, port: admin}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
          # The dispatchers hear of the drain from the instance itself; the pause lets Kubernetes stop counting it first.
          lifecycle: {preStop: {exec: {command: [sleep, "2"]}}}
          resources: {{- toYaml .resources | nindent 12 }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            - {name: admin, mountPath: /etc/dispatch/admin, readOnly: true}
            {{- if .root.Values.broker.tokenSecret }}
            - {name: broker-token, mountPath: /etc/dispatch/broker-token, readOnly: true}
            {{- end }}
            {{- if .root.Values.broker.trustSecret }}
            - {name: broker-trust, mountPath: /etc/dispatch/broker-trust, readOnly: true}
            {{- end }}
            {{- with .mounts }}{{ . | nindent 12 }}{{ end }}
      volumes:
        - {name: tmp, emptyDir: {}}
        - name: admin
          secret: {secretName: {{ .root.Values.admin.tokensSecret }}, items: [{key: tokens.json, path: tokens.json}]}
        {{- if .root.Values.broker.tokenSecret }}
        - {name: broker-token, secret: {secretName: {{ .root.Values.broker.tokenSecret }}}}
        {{- end }}
        {{- if .root.Values.broker.trustSecret }}
        - {name: broker-trust, secret: {secretName: {{ .root.Values.broker.trustSecret }}}}
        {{- end }}
        {{- with .volumes }}{{ . | nindent 8 }}{{ end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .root.Release.Name }}-{{ .name }}
  labels: {{- include "dispatch.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "dispatch.labels" . | nindent 6 }}
{{- end -}}
