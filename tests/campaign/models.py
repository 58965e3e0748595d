COUNT = 0

def play(stage):
    pass
