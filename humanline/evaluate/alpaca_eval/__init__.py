"""AlpacaEval's files: model_outputs.json made of samples, and annotations.json read back without the package.

The package (alpaca_eval 0.6) joins outputs to its instructions by their exact text. An instruction that is missing,
there twice or changed is dropped or doubled with a line in a log, and where its difficulty is then looked up, the
length-controlled rate is nan: so all of these are refused here. What its annotations hold: `preference` is 1 where the
baseline's output is better, 2 where the model's is, between them for a weighted preference, 1.5 or 0 for a tie, and
null, or -1 in the file that it caches, where the annotator's answer was not understood. Nothing here asks the network.
"""
