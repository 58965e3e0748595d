"""A plugin of pytest (`-p tests.helpers.no_posix_plugin`): the package finds no POSIX, from before its first import."""

from tests.helpers.no_posix import lack

lack()
