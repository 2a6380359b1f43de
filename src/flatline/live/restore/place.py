"""Where something was found: on the way from something that has a name."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Place:
    """A root and the way from it."""

    root: str
    """In the user's words: "your callback `Ema`"."""
    way: str = ""
    users: bool = False
    """Whether it is the user's, or in the hands of something that is."""
    must: bool = False
    """Whether a step changes the tensors that lie here."""
    many: bool = False
    """Whether it belongs to a model or its optimizer, which are as large as they are."""
    shallow: bool = False
    """Whether only containers are kept below: the object belongs to a machinery."""

    def at(self, step: str, *, users: bool | None = None) -> "Place":
        """One step further."""
        return replace(self, way=self.way + step, users=self.users if users is None else users)

    def __str__(self) -> str:
        return f"{self.root}, `{self.way}`" if self.way else self.root
