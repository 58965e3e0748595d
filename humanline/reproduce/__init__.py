"""The paper in miniature: testbeds made on the spot, declared grids of runs, and what they say of its claims."""
