"""The host agent: the same batches as embedded, for many clients, whoever dies."""
