# ruff: noqa: E501 (one case a line)
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recurformer.data.wikipedia import clean_markup, to_text

SENTENCE = "This sentence is long enough to be kept."


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("'''Bold''' and ''italic'' [[link]]s and [[Target page|labels]] remain in this line.", "Bold and italic links and labels remain in this line."),
        (f"{SENTENCE}<ref name=\"a\">Smith {{{{cite book|title=X}}}}</ref><ref name=\"a\" />", SENTENCE),
        (f"{SENTENCE}<!-- a comment -->", SENTENCE),
        (f"{{{{Infobox country|name=X|capital=[[Y]]}}}}\n{SENTENCE}", SENTENCE),
        (f"{{| class=\"wikitable\"\n|-\n! Year !! Population of the whole country.\n|-\n| 1900 || 5,000,000 people lived here then.\n|}}\n{SENTENCE}", SENTENCE),
        (f"[[File:A.jpg|thumb|300px|A caption with a [[link]] and a full stop.]]\n{SENTENCE}\n\n[[Category:Things]]\n[[fr:Chose]]", SENTENCE),
        (f"== History ==\n{SENTENCE}\n=== Early history of the whole of it. ===\n{SENTENCE}", f"{SENTENCE}\n\n{SENTENCE}"),
        (f"{SENTENCE}\n== References ==\n{{{{reflist}}}}\nSmith, John. A very long reference to a book.\n=== Notes on them ===\n{SENTENCE}\n== After ==\n{SENTENCE}", f"{SENTENCE}\n\n{SENTENCE}"),
        ("The line breaks\nof the source are spaces.\n\nA blank line ends a paragraph here.", "The line breaks of the source are spaces.\n\nA blank line ends a paragraph here."),
        ("* A first item which is a whole sentence.\n* A second item which is one, too.", "A first item which is a whole sentence.\n\nA second item which is one, too."),
        (f"* [[Short]]\n* Items without any stop at their end are a list\n{SENTENCE}", SENTENCE),
        ("It is {{convert|5|km|mi}} long, {{convert|3|to|4|m|ft}} wide and {{convert|2|by|3|cm|in}} thick.", "It is 5 km long, 3 to 4 m wide and 2 by 3 cm thick."),
        ("Achilles ({{lang-grc|Ἀχιλλεύς}}, {{IPAc-en|ə|k}}; ''Akhilleus'') was a hero of the war.", "Achilles (Ἀχιλλεύς, Akhilleus) was a hero of the war."),
        ("Autism ({{IPAc-en|x}}; {{respell|AW}}) is a disorder of the development.", "Autism is a disorder of the development."),
        ("Water is {{chem|H|2|O}}, half is {{frac|1|2}}, and 10<sup>3</sup> is a thousand.", "Water is H2O, half is 1/2, and 103 is a thousand."),
        ("{{As of|2012|3}} it had many people, {{as of|2012|lc=y}} it has few of them.", "As of March 2012 it had many people, as of 2012 it has few of them."),
        ("A dash{{ndash}}like this&nbsp;one &mdash; is a sign &amp; stays in the text.", "A dash – like this one — is a sign & stays in the text."),
        (f"{SENTENCE}<ref>{{{{cite web |title=Broken}} x</ref>", SENTENCE),
        (f"<math>\\frac{{a}}{{b}}</math><gallery>\nFile:A.jpg|A caption, which is a full sentence.\n</gallery>\n{SENTENCE}", SENTENCE),
        ("See [http://example.org the site of this example] or [http://example.org] for what it says.", "See the site of this example or for what it says."),
        (f"{{| class=x\n| a table that nobody closed, with a full stop.\n{SENTENCE}", SENTENCE),
        ("__NOTOC__", ""),
    ],
)  # fmt: skip
def test_what_each_kind_of_markup_leaves(markup, text):
    assert clean_markup(markup) == text


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab .'[]{}|=<>/ref!*#:\n&;-", max_size=200))
def test_broken_markup_never_fails(markup):
    cleaned = clean_markup(markup)
    assert "[[" not in cleaned and "{{" not in cleaned and "\n\n\n" not in cleaned


def test_nested_templates_and_unknown_ones():
    assert to_text("{{nowrap|{{lang|fr|[[mot]]}}}} {{unknown|text}}") == "mot "
