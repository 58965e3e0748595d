"""Testbeds: tasks with a scorer that need nothing from outside, and the sizes of the models that learn them."""
