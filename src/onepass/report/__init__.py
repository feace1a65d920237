"""Runs as one page: a file of HTML that needs no network, for a browser of any width, by day and by night."""

from onepass.report.gathered import Gathered as Gathered
from onepass.report.gathered import gather as gather
from onepass.report.page import page as page
