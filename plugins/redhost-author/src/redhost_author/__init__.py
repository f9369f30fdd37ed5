"""The verbs `redhost new-plugin` and `redhost new-workflow`: files for authors, from templates.

`redhost_author.plugin_project` writes a plugin's project, `redhost_author.workflow` the workflow of
an expert's project; the texts are in `templates/`. This module imports none.
"""
