"""The paper in miniature: testbeds made on the spot, declared grids of runs on them, and what these say of its claims."""
