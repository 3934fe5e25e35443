"""Word lists that the English rules share: ``<kin>`` in a pattern stands for one of them."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["VAGUE", "pattern"]

_WORDS = {
    # in a class of characters: what letters of many scripts are written with, no letter itself
    "mark": "".join(
        chr(code) for code in range(0x300, 0x1900) if unicodedata.category(chr(code))[0] == "M"
    ),
    # adverbs that may stand between "I" and its verb
    "adv": r"(?:(?:really|also|just|still|always|absolutely|actually|currently|now|then|recently|"
    r"usually|already|even|both|mostly|mainly|generally|very much|particularly|especially|truly|"
    r"personally|definitely|simply|genuinely|totally|quite|finally|often|sometimes) )*",
    "am": r"I(?:'m| am)",
    "have": r"I(?:'ve| have)",
    "kin": r"(?:(?:older|younger|elder|little|big|oldest|youngest|twin|late|step|other) ?)?"
    r"(?:mother|mom|mum|father|dad|parents|wife|husband|partner|spouse|fianc[ée]e?|boyfriend|"
    r"girlfriend|son|daughter|kids|children|child|baby|brother|sister|siblings|twins|"
    r"grandmother|grandma|grandfather|grandpa|aunt|uncle|cousin|niece|nephew|"
    r"(?:mother|father|sister|brother)-in-law|best friend|roommate|flatmate|boss|manager)",
    "none": r"(?:I ?(?:(?:don't|do not|never|haven't|have not|have never) (?:actually |really )?"
    r"(?:have|had|got) (?:got )?(?:any |an? )?|(?:have|have got|'ve got) (?:actually )?no |"
    r"(?:'ve| have) never (?:had|owned) (?:any |an? )?)|"
    r"we (?:don't|do not) have (?:any |an? )?|we have no )",
    "turned": r"(?:is|turned|just turned|turns|will be|is turning|recently turned) (?:now |"
    r"almost |only "
    r")?(?:\d{1,2}|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|"
    r"fourteen|"
    r"fifteen|sixteen)",
    "pet": r"(?:dogs?|cats?|pupp(?:y|ies)|kittens?|rabbits?|parrots?|horses?|hamsters?|"
    r"tortoises?|turtles?|goldfish|budgies?|guinea pigs?|goats?|chickens?|hens?|pony|ponies)",
    # a place or firm: capitalised, may go on with small linking words
    "proper": r"(?-i:(?:the )?(?:[A-Z][\w'&.-]*)(?:(?:, | (?:de|do|da|del|of|the|la|and|on|in|for) "
    r"| )(?:[A-Z][\w'&.-]*))*)",
    "place": r"(?-i:(?:[A-Z][\w'.-]*)(?:(?:, | (?:de|do|da|del|of|the|la|on) | )"
    r"(?:[A-Z][\w'.-]*))*)",
    "thing": r"(?P<thing>[^,.;!?()]+?)",
    "end": r"(?=\s*(?:[,.;!?()]|$|\s-\s| (?:because|since|when|although|though|as|so|which|who|"
    r"and|but|for|every|in the|with|especially|even|more than|than|these days|anymore|any more|"
    r"at all|now|very much|a lot|again|instead|so much)\b))",
    "job": r"(?P<job>(?:[\w'-]+ ){0,4}?(?:\w+(?:eer|ician|ologist|wright|yst|ecturer|rapher)|nurse|"
    r"doctor|dentist|surgeon|vet|chef|cook|baker|barista|bartender|waiter|waitress|teacher|"
    r"professor|tutor|student|pupil|undergrad|lawyer|attorney|judge|paralegal|engineer|developer|"
    r"programmer|designer|architect|accountant|consultant|analyst|scientist|researcher|writer|"
    r"author|editor|journalist|reporter|translator|interpreter|librarian|pharmacist|paramedic|"
    r"firefighter|soldier|pilot|driver|mechanic|electrician|plumber|carpenter|welder|builder|"
    r"farmer|gardener|florist|tailor|hairdresser|barber|artist|painter|illustrator|sculptor|"
    r"musician|singer|composer|producer|actor|actress|dancer|filmmaker|photographer|manager|"
    r"director|founder|entrepreneur|freelancer|owner|assistant|secretary|receptionist|cashier|"
    r"clerk|salesperson|realtor|broker|banker|trader|psychologist|therapist|counsellor|counselor|"
    r"coach|trainer|instructor|social worker|police officer|officer|administrator|technician|"
    r"biologist|chemist|physicist|mathematician|economist|historian|intern|apprentice|postdoc|"
    r"nanny|carer|caregiver|recruiter|marketer|strategist|planner|midwife|economist|"
    r"homemaker|retiree|PhD student|CEO|CTO))\b",
    "taste": r"<adv>(?:love|like|adore|enjoy|hate|loathe|detest|dislike|can't stand|cannot stand|"
    r"(?:don't|do not|no longer) (?:really |particularly )?(?:like|enjoy|care for|love)|"
    r"can't bear) (?:drinking |eating |to drink |to eat |the taste of )?",
    "day": r"(?:days?|mornings?|evenings?|afternoons?|nights?|weeks?|weekends?|months?|years?|"
    r"mondays?|tuesdays?|wednesdays?|thursdays?|fridays?|saturdays?|sundays?|summer|winter|"
    r"spring|autumn|fall|christmas)",
    # what an assistant can be told to do
    "do": r"(?:answer|reply|respond|use|write|give|call|speak|talk|keep|start|begin|end|include|"
    r"add|cite|mention|suggest|recommend|ask|remind|send|say|tell|address|explain|format|"
    r"translate|assume|show|list|put|be|make|check|avoid|offer|share|bring up|skip|convert|quote|"
    r"double-check|round|refer|sign|summari[sz]e|apologi[sz]e|discuss|propose|schedule)",
    "past": r"(?:went|visited|attended|started|began|finished|completed|bought|met|ran|hiked|"
    r"joined|participated|organi[sz]ed|hosted|launched|published|performed|signed up|enrolled|"
    r"graduated|moved|travell?ed|flew|drove|cycled|took part|took|adopted|gave|held|won(?!')|lost|"
    r"quit|left|returned|got|had|made|built|wrote|created|led|presented|submitted|passed|failed|"
    r"learned|learnt|taught|volunteered|planted|cooked|baked|saw|watched|read|broke|sprained|"
    r"injured|celebrated|curated|sampled|produced|recorded|released|designed|developed|"
    r"collaborated|conducted|explored|tried|applied|interviewed|sold|painted|renovated|"
    r"discovered|founded|opened|switched|played|composed|experimented|remixed|crafted|hired|"
    r"competed|trained|studied|worked|planned|invited|stopped|turned down|decided to)",
}
# A liking of "that idea" or "the one you named" tells nobody anything later.
VAGUE = (
    r".*?\b(?:love|like|enjoy|adore|prefer|hate|dislike|loathe|detest|stand|into|appreciate|in|"
    r"about|of|on)(?: (?:it|that|this|these|those|them|him|her|his|their|its|how|what|when|where|"
    r"to "
    r"(?:know|see if|think|ask|hear|learn more|talk|say|thank|imagine|believe|share|add|hear)|"
    r"an? (?:idea|good)|all|both|everything|anything|nothing|something|one|such|knowing|seeing|"
    r"hearing|being able|each|talking to|everyone|people|learning more|exploring|trying|finding|"
    r"getting|taking (?:a|the)|the (?!ocean|sea|beach|mountains?|outdoors|rain|snow|cold|heat|"
    r"smell of|taste of|sound of|piano|violin|guitar|cello|drums|sun|countryside|forest|desert|"
    r"dark|"
    r"water|theat(?:er|re)|(?-i:[A-Z])))\b|\W*$)"
    r"|\b(?:would|could|today|right now|there|yesterday|so far|ideas?|suggestions?|"
    r"recommendations?)\b|\bthat's\b"
)
_MACRO = re.compile(r"(?<!\?P)<(\w+)>")


def pattern(source: str) -> re.Pattern[str]:
    """Compile a pattern in which ``<name>`` stands for one of ``_WORDS``."""
    known = source
    while _MACRO.search(known):
        known = _MACRO.sub(lambda name: _WORDS[name[1]], known)
    return re.compile(known, re.IGNORECASE)
