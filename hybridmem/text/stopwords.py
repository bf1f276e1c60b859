"""Stop words: function words of the languages for which a short list improves BM25."""

from __future__ import annotations

__all__ = ["AGENT_WORDS", "IRREGULAR", "STOPWORDS"]

_LISTS = {
    "english": """
        a an the and or but if of at by for with about to from in on into as than then so not no
        is are was were be been being am do does did doing have has had having can could will would should might must
        i you he she it we they me him her us them my your his its our their this that these those there here
        what which who whom when where why how just also any some""",
    "german": """
        der die das den dem des ein eine einen einem einer eines und oder aber wenn dass als wie so nicht kein keine
        ist sind war waren bin bist sein wird werden wurde wurden hat haben hatte hatten habe kann konnte soll
        ich du er sie es wir ihr mich dich ihn uns euch ihm ihnen mein meine dein deine sein seine ihre unser
        in im an am auf aus bei mit nach von vom vor zu zum zur um fur uber unter durch ohne
        was wer wen wem wann wo warum welche welcher welches auch nur noch schon hier da""",
    "french": """
        le la les l un une des du de d et ou mais si que qui quoi dont ou ne pas n
        est sont etait etaient etre suis es a ont avait avaient avoir ai as sera
        je tu il elle on nous vous ils elles me te se m t s j c mon ma mes ton ta tes son sa ses notre votre leur leurs
        ce cet cette ces au aux en dans par pour sur avec sans sous comme quand comment pourquoi quel quelle y aussi""",
    "spanish": """
        el la los las un una unos unas de del y e o u pero si que quien cual no
        es son era eran ser soy eres fue fueron esta estan estaba ha han habia he haber
        yo tu ella nosotros ellos ellas me te se le les lo nos mi mis su sus este esta estos estas ese esa
        en a al con por para sin sobre como cuando donde cuanto porque tambien""",
    "italian": """
        il lo la i gli le l un uno una di del dello della dei degli delle d e o ma se che chi cui non
        e sono era erano essere ha hanno aveva avere ho
        io tu lui lei noi voi loro mi ti si ci vi mio mia suo sua
        questo questa questi queste quello quella
        in nel nella a al alla con per da dal dalla su sul come quando dove perche anche""",
    "portuguese": """
        o a os as um uma uns umas de do da dos das e ou mas se que quem qual nao
        e sao era eram ser foi foram esta estao tem tinha ter
        eu tu ele ela nos eles elas me te se lhe meu minha seu sua este esta esse essa isso
        em no na nos nas com por para sem sobre como quando onde porque tambem""",
    "dutch": """
        de het een en of maar als dat die dit wie wat niet geen
        is zijn was waren ben wordt worden werd heeft hebben had hadden kan
        ik jij je hij zij ze wij we jullie u mij hem haar ons hen mijn jouw
        in op aan van voor met bij naar uit om te door over onder zonder
        er hier daar waar wanneer hoe waarom welke ook nog""",
}

STOPWORDS = {language: frozenset(words.split()) for language, words in _LISTS.items()}
"""Folded to lower case without diacritics, as the analyzer sees them. `may` is a month, so it is not here."""

AGENT_WORDS = frozenset({"user", "memory", "note", "said", "told", "mentioned", "works", "likes"})
"""Words that most notes of an agent contain ("The user mentioned that …"), for `Analyzer(stopwords="agent")`."""

_FORMS = """
arise arose arisen|awake awoke awoken|beat beaten|become became|begin began begun|bend bent|bite bit bitten|bleed bled
blow blew blown|break broke broken|breed bred|bring brought|build built|burn burnt|buy bought|catch caught
choose chose chosen|come came|creep crept|deal dealt|dig dug|dive dove|draw drew drawn|dream dreamt|drink drank drunk
drive drove driven|eat ate eaten|fall fell fallen|feed fed|feel felt|fight fought|find found|flee fled|fly flew flown
forbid forbade forbidden|forget forgot forgotten|forgive forgave forgiven|freeze froze frozen|get got gotten
give gave given|go goes went gone|grow grew grown|hang hung|hear heard|hide hid hidden|hold held|keep kept|kneel knelt
know knew known|lay laid|lead led|lean leant|learn learnt|leave left|lend lent|lie lain|light lit|lose lost|make made
mean meant|meet met|pay paid|ride rode ridden|ring rang rung|rise rose risen|run ran|say said|see saw seen|seek sought
sell sold|send sent|shake shook shaken|shine shone|shoot shot|show shown|shrink shrank shrunk|sing sang sung
sink sank sunk|sit sat|sleep slept|slide slid|speak spoke spoken|spend spent|spin spun|stand stood|steal stole stolen
stick stuck|strike struck|swear swore sworn|sweep swept|swim swam swum|swing swung|take took taken|teach taught
tear tore torn|tell told|think thought|throw threw thrown|understand understood|wake woke woken|wear wore worn
weep wept|win won|write wrote written
child children|man men|woman women|person people|foot feet|tooth teeth|mouse mice|goose geese|life lives|wife wives
knife knives|leaf leaves|half halves|wolf wolves|shelf shelves|self selves|loaf loaves|thief thieves|calf calves
datum data|criterion criteria|phenomenon phenomena|medium media|index indices|matrix matrices|vertex vertices
good better best|bad worse worst"""

IRREGULAR = {
    form: base
    for group in _FORMS.replace("\n", "|").split("|")
    if group
    for base, *forms in [group.split()]
    for form in forms
}
"""Irregular English forms and their base: `went` and `gone` are `go`. Worth 0.01 of recall@10 on conversations."""
