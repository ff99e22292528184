"""The refusal of a model file."""


class ModelFileError(ValueError):
    """A model file that cannot be trusted or used.

    The message is one sentence that names the file, the offset or the tensor or key, and what is wrong with it.
    """
