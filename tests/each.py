"""One test for a whole list: every case is tried, and those that fail are told together.

For lists of hundreds, where a test of its own for each costs more than what it tests.
"""

from inspect import signature


def each(parameter, values, ids=str):
    """The test takes each of the values as `parameter`."""
    values = list(values)
    names = list(ids) if not callable(ids) else [ids(value) for value in values]

    def of_all(test):
        def tried(**others):
            failed = []
            for name, value in zip(names, values, strict=True):
                try:
                    test(**{parameter: value}, **others)
                except Exception as error:
                    failed.append(f"{name}: {type(error).__name__}: {error}")
            assert not failed, "\n".join(failed)

        own = signature(test)
        left = [one for name, one in own.parameters.items() if name != parameter]
        tried.__signature__ = own.replace(parameters=left)
        tried.__name__, tried.__doc__, tried.__module__ = (
            test.__name__,
            test.__doc__,
            test.__module__,
        )
        return tried

    return of_all
