"""How the numbers of an answer are computed, in words: a heading and its text each."""

METHOD: tuple[tuple[str, str], ...] = (
    (
        "Estimates of accuracy",
        "Validation accuracies are not those of single trainings. Where a model has six or more configurations within "
        "15 points of its best, a response to batch size, learning rate and whatever else was swept is fitted to all "
        "its trainings: a polynomial of the second degree, a Gaussian process, and deviations that close neighbors "
        "share. A value and its 95 % interval are the median and quantiles of joint draws from it.",
    ),
    (
        "Intervals",
        "Intervals of accuracy contain the spread between seeds (that of the region, at least the one pooled over all "
        "confirmed configurations) and the sampling error of the validation images, by crossed random effects of seeds "
        "and images. Other intervals are of Student's t distribution.",
    ),
    (
        "Comparisons",
        "Two configurations are compared on the same images, where most of the sampling error is common to both: the "
        "interval of their difference is narrower than their own intervals suggest.",
    ),
    (
        "Probabilities",
        "They are shares of 1,000 of these draws in which the statement is right within the study's tolerance. A "
        "configuration with one seed is drawn with the same spread, shrunk towards the others. A rival makes a "
        "statement wrong only where it loses less than half of the tolerance. Probabilities are about the "
        "configurations that were tried, not about others. Search trials share one seed; its common effect is counted "
        "as if each trial had its own.",
    ),
    (
        "Time and memory",
        "They are pooled over trials of equal cost where those do not scatter too much to be of one cost.",
    ),
)
