"""The task `spans`: labelled parts of a text, found word by word.

`redhost_spans.hooks` registers it, `words` is its unit, `span_head` its head, and `label_spans` its
answers in text form.
"""
