"""Markdown of the reference pages, generated from the code when the site is built (:mod:`docs.generators.extension`)."""
