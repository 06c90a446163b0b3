"""What a process group is called; the methods' names are those of C++, which calls some of them."""


class Named:
    """Part of a process group."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._description = "undefined"

    def getBackendName(self) -> str:  # noqa: N802
        return "accord"

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description
