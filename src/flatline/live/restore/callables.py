"""What can be reached through code: closures, defaults, attributes, modules, classes."""

from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from flatline.live.restore import belongs, keep
from flatline.live.restore.code import referred
from flatline.live.restore.place import Place

if TYPE_CHECKING:
    from flatline.live.restore.walk import Walk


def of_function(walk: "Walk", function: FunctionType, place: Place) -> None:
    """A library's may hold a function of the user's in its closure. One of ours that wraps another
    holds what is measured right now."""
    module = belongs.module_of(function)
    if module.startswith("flatline.") and not belongs.within(module, belongs.OF_A_TRAINING):
        walk.reach(vars(function).get("__wrapped__"), place)
        return
    users = belongs.is_users(module)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        of_cell(walk, cell, place.at(f"'s {name}", users=users))
    walk.reach(function.__defaults__, place.at("'s defaults", users=users))
    walk.reach(function.__kwdefaults__, place.at("'s defaults", users=users))
    walk.attributes(function, place.at("", users=users))
    if users:
        for names, name in referred(function):
            of_global(walk, names, name, place.at("", users=True))


def of_global(walk: "Walk", module: dict[str, Any], name: str, place: Place) -> None:
    """A name of the user's module, which may be bound to something else, and what it names."""
    called = module.get("__name__", "its module")
    here = Place(f"{place.root}, module `{called}`", users=True)
    names = walk.names.setdefault(id(module), (module, {}, here))[1]
    if name in names:
        return
    names[name] = None
    found = module.get(name)
    if isinstance(found, ModuleType):
        what = belongs.refers_outside(found)
        if what:
            walk.cannot(found, here.at(f".{name}"), what)
    else:
        walk.reach(found, here.at(f".{name}"))


def of_cell(walk: "Walk", cell: CellType, place: Place) -> None:
    if id(cell) not in walk.seen:
        walk.seen[id(cell)] = cell
        how = keep.of_cell(cell)
        walk.hold(place, how)
        for one in how[0]():
            walk.reach(one, place)


def of_method(walk: "Walk", method: MethodType, place: Place) -> None:
    walk.reach(method.__self__, place)
    walk.reach(method.__func__, place)


def of_builtin(walk: "Walk", one: BuiltinFunctionType, place: Place) -> None:
    """`seen.append` changes `seen`."""
    if not isinstance(one.__self__, ModuleType):
        walk.reach(one.__self__, place)


def of_partial(walk: "Walk", one: Any, place: Place) -> None:
    walk.reach(one.func, place)
    walk.reach(one.args, place.at(".args"))
    walk.reach(one.keywords, place.at(".keywords"))
    walk.attributes(one, place)


def of_class(walk: "Walk", kind: type, place: Place) -> None:
    """A class of the user's; libraries' are not looked into."""
    if not belongs.is_users(belongs.module_of(kind)):
        return
    own = Place(f"{place.root}, class `{kind.__name__}`", users=True)
    found = keep.OfClass(own, kind)
    walk.kept.append(found)
    methods = {name: one for name, one in vars(kind).items() if type(one) is FunctionType}
    for name, one in (methods | found.entries()).items():
        walk.reach(one, own.at(f".{name}"))
    for base in kind.__bases__:
        walk.reach(base, place)


def of_descriptor(walk: "Walk", one: Any, place: Place) -> None:
    parts = ("fget", "fset", "fdel") if isinstance(one, property) else ("__func__",)
    for name in parts:
        walk.reach(getattr(one, name), place)
