"""The error of this package."""


class ExportError(RuntimeError):
    """A model that cannot be exported, with the place, the reason and what to do next.

    Nothing stands under the final name when it is raised; a file that was there stays.
    """
