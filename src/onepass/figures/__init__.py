"""Recorded arrays as figures, a file for each kind."""

from onepass.figures.alpha import Grid as Grid
from onepass.figures.alpha import Law as Law
from onepass.figures.alpha import fitted_line as fitted_line
from onepass.figures.alpha import heat_map as heat_map
from onepass.figures.alpha import plasticity_and_stability as plasticity_and_stability
from onepass.figures.bars import durations as durations
from onepass.figures.confusion import confusions as confusions
from onepass.figures.curves import Curve as Curve
from onepass.figures.curves import Drift as Drift
from onepass.figures.curves import along_the_stream as along_the_stream
from onepass.figures.curves import drifts as drifts
from onepass.figures.curves import networks as networks
from onepass.figures.embedding import embeddings as embeddings
from onepass.figures.embedding import tsne as tsne
from onepass.figures.importance import importance as importance
from onepass.figures.presence import presence as presence
from onepass.figures.samples import samples as samples
from onepass.figures.style import save as save
