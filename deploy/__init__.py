"""The deployment kit: image, compose file, Helm chart and systemd units, and the check that ``make lint`` runs."""
