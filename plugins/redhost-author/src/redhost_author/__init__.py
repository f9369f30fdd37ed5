"""The verbs `new-backbone`, `new-plugin` and `new-workflow`: what authors write packages from.

`redhost_author.backbone` makes a backbone of a model, `redhost_author.plugin_project` writes a
plugin's project, `redhost_author.workflow` the workflow of an expert's project; the texts of both
are in `templates/`. This module imports none.
"""
