"""The paper's claims on models that are no toys: which runs, with which settings, how they are asked, what they say."""
