"""The English rules, one a line, tried from top to bottom."""

from __future__ import annotations

from flows.rules.english_words import VAGUE as _VAGUE
from flows.rules.english_words import pattern as _p
from flows.rules.rule import Rule
from stores.records import AtomType

__all__ = ["RULES"]

_VAGUE_THING = _p(_VAGUE)
_A_MOMENT = _p(r"\b(?:tired|hungry|bored|sleepy|busy|today|tonight|right now|at the moment)\b")
_NOT_A_PLACE = _p(r"\bI (?:was|were)\b|\b(?:used to|want to|hope to|wanted to)\b")
_NO_FACT = _p(
    r"\b(?:wish|hope|hopefully|good (?:day|time|night)|(?:great|bad|rough|long|terrible|"
    r"busy|nice|lovely|wonderful|hard|tough|awful|weird|lazy|boring) (?:day|week|time|night|"
    r"morning|weekend)|a lot of fun|idea|news|steps|thought about|almost|nearly)\b"
)

_NOT_HERE = _p(r"\b(?:with me|today|tonight|here|anyone|time|when|nearby|around)\b")

_PERSONA: AtomType = "persona"
_EPISODIC: AtomType = "episodic"

RULES: tuple[Rule, ...] = (
    # --- what the assistant is asked to do from now on ---------------------------------------
    Rule("instruction.name", _p(
        r"(?:(?:please|and|just|but|do|from now on),? )*(?:call|address) me (?:as )?"
        r"(?P<v>[\w' -]{1,30}?)(?:,? (?:from now on|please|instead|for short|not .*))?\W*$"),
        "instruction", 80, slot="name.preferred",
        unless=_p(r"\b(?:when|back|later|tomorrow|if|crazy|stupid|old[- ]fashioned|at|a|an|maybe)\b"
                  )),
    Rule("instruction.strict", _p(
        r"(?:(?:please|and|also|so|but|just|remember to|make sure to|make sure you|i (?:want|need|"
        r"would like|'d like|ask) you to|from now on|in (?:the )?future|going forward),? )*"
        r"(?:always|never|(?:do not|don't) ever|under no circumstances|without exception,?) "
        r"(?:ever )?(?:please )?(?!give (?:up|in)\b|say never)<do>\b(?! (?:able|sure|happy|"
        r"a pleasure)\b)"),
        "instruction", -1, whole=True),
    Rule("instruction.standing", _p(
        r"(?:please |and |also |so )*(?:from now on|from here on|going forward|henceforth|"
        r"in (?:the )?future|from today(?: on)?|for all (?:my|future) \w+|in all (?:your|future) "
        r"\w+|(?:whenever|every time|each time|when) (?:I|you)\b[^,]{1,60}(?=,)),? "
        r"(?:(?:please|just|could you|can you|I'd like you to|I want you to|you should|"
        r"you can|only|make sure to) )*(?:<do>|don't|do not|stop|no more|only)\b"),
        "instruction", 85, whole=True,
        unless=_p(r"\bI (?:will|'ll|am going to)\b")),
    Rule("instruction.from_now", _p(
        r"(?:(?:please|just|could you|can you|I'd like you to|I want you to) )*(?:<do>|don't|do not"
        r"|stop)\b.{2,120}\b(?:from now on|going forward|in (?:the )?future|every time|"
        r"(?:from|after) today|in all (?:your|future) \w+|each time|whenever I ask)\b"),
        "instruction", 85, whole=True),
    Rule("instruction.stop", _p(
        r"(?:please )?(?:stop|no more|quit) (?:calling|using|sending|asking|suggesting|"
        r"recommending|adding|giving|apologi[sz]ing|writing|saying|emojis?)\b"),
        "instruction", 80, whole=True, unless=_p(r"^stop it|\bI\b")),
    Rule("instruction.dont", _p(
        r"(?:please )(?:do not|don't) (?:call|use|mention|bring up|suggest|recommend|remind|add|"
        r"share|tell|ask|send|apologi[sz]e)\b(?!.*\b(?:this time|for now|today|yet|here)\b)"),
        "instruction", 75, whole=True),
    Rule("instruction.answers", _p(
        r"(?:please )?(?:keep|make) (?:all )?(?:your|the) (?:answers?|replies|responses|messages|"
        r"explanations) \w+"
        r"|I(?:'d)? (?:<adv>)?(?:prefer|like|want|need) (?:it when you |"
        r"(?:your )?(?:\w+,? (?:and )?)"
        r"{0,3}(?:answers|replies|responses|explanations)\b)"),
        "instruction", 75, whole=True, unless=_p(r"\bthis time\b|\bfor this\b")),
    # --- who the user is ---------------------------------------------------------------------
    Rule("name", _p(
        r"(?:my (?:full |real )?name(?:'s| is)|I(?:'m| am) called|I go by|name's) "
        r"(?P<v>(?-i:[^\W\d_a-z][\w<mark>'-]*"
        r"(?: (?:de |van |von |da |al-)?[^\W\d_a-z][\w<mark>'-]*){0,3}))"),
        _PERSONA, 95, "name", "User's name is {v}."),
    Rule("age", _p(
        r"<am> <adv>(?P<v>\d{1,3}|(?:twenty|thirty|forty|fifty|sixty|seventy|eighty)(?:-\w+)?|"
        r"(?:nine|eigh|seven|six|fif|four|thir)teen)"
        r"(?: years? old| years? of age| yrs? old|(?=\W*$|, | (?:now|and (?:I|a|work|live))\b))"),
        _PERSONA, 85, "age", "User is {v} years old."),
    Rule("age.turned", _p(r"I <adv>(?:turned|turn|'?ll turn|will turn|'?m turning|am turning) "
                          r"(?P<v>\d{1,3}|[a-z]+ty(?:-\w+)?)\b(?!\s?%)"), _PERSONA, 85, "age"),
    Rule("birthday", _p(r"my birthday(?:'s| is|'s on) (?!coming|soon|party|next|today|tomorrow)"
                        r"\S+"),
         _PERSONA, 85, "birthday"),
    Rule("birth", _p(r"I was born (?:in|on|at)\b"), _PERSONA, 80, "birth"),
    Rule("origin", _p(r"(?:<am> <adv>(?:originally )?|I (?:originally )?come )from (?P<v><place>)"),
         _PERSONA, 80, "origin"),
    Rule("grew_up", _p(r"I (?:was raised|grew up|spent my childhood) (?:in|on|near|by|with)\b"),
         _PERSONA, 70, "childhood.place"),
    Rule("nationality", _p(
        r"<am> <adv>(?:half[- ])?(?:a )?(?-i:(?:[A-Z][a-z]+(?:ese|ian|ish)|German|French|Dutch|"
        r"Greek|Swiss|Thai|Iraqi|Mexican|American|Chilean|African|Korean|Moroccan|Czech|Danish|"
        r"Icelandic|Pakistani|Filipino|Muslim|Jewish|Catholic|Buddhist|Hindu)\b)"), _PERSONA, 80),
    # --- home --------------------------------------------------------------------------------
    Rule("home.not", _p(r"(?:I|we) (?:no longer live|don't live|do not live) (?:in|at)\b"),
         _PERSONA, 75, "home.city"),
    Rule("home.city", _p(
        r"(?:(?:I|we) <adv>(?:live|reside)|(?:<am>|we're|we are) <adv>(?:living|based|settled)|"
        r"(?:<have>|we've) <adv>(?:lived|been living)) <adv>"
        r"(?:with [^,.]{1,30} )?(?:in|near|outside) (?P<v><place>)"), _PERSONA, 85, "home.city",
        unless=_NOT_A_PLACE),
    Rule("home.city.moved", _p(
        r"(?:(?:I|<have>|we|we've|my \w+ and I) <adv>(?:moved|relocated)|"
        r"(?:<am>|we're) <adv>(?:moving|relocating)) <adv>(?:back |here |over |out |house )*"
        r"(?:from [^,.]{2,30} )?(?:back )?to (?P<v><place>)"), _PERSONA, 85, "home.city"),
    Rule("home.city.lower", _p(
        r"I <adv>live in (?!a\b|an\b|the\b|my\b|our\b|one\b|fear|peace|hope|constant|this|that|"
        r"here|two|what|such)(?P<v>[a-z]{3,}(?: [a-z]{3,})?)\W*$"), _PERSONA, 85, "home.city"),
    Rule("home.where", _p(r"my (?:home ?town|home city|home) is (?P<v><place>)"), _PERSONA, 80,
         "home.city"),
    Rule("home.kind", _p(
        r"I <adv>(?:live|share a (?:flat|house|apartment|place))(?: \w+)? (?:in (?:a|an|the|my|our|"
        r"one of)|with|alone|by myself|on (?:a|an|the)|close to|next to|near)\b"), _PERSONA, 65,
        unless=_A_MOMENT),
    # --- work and study ----------------------------------------------------------------------
    Rule("job.changed", _p(
        r"I (?:no longer|don't|do not|stopped) (?:work|working) (?:at|for) (?P<old>[^,.;]{2,40}?)"
        r"(?: anymore| any more)?\s*[,;.-]?\s*(?:and |but )?(?:now )?(?:I'm|I am|I work|"
        r"I'm working|"
        r"I am working|I joined|I moved to) (?:now )?(?:at |for |with )?(?P<new><proper>)"),
        _PERSONA, 85, "job.employer", "User now works at {new} (no longer at {old}).", whole=True),
    Rule("job.not", _p(r"I (?:no longer work|don't work|do not work|stopped working|quit working) "
                       r"(?:at|for) \w+"), _PERSONA, 75, "job.employer"),
    Rule("job.left", _p(
        r"(?:I|<have>) <adv>(?:quit|left|resigned from|lost|got fired from|was laid off from|"
        r"got laid off from) (?:my )?(?:old )?(?:job|position|company|post|(?P<v><proper>))"),
        _PERSONA, 80, "job.employer"),
    Rule("job.retired", _p(r"(?:I|<have>|<am>) <adv>retired\b(?! (?:to bed|for))"), _PERSONA, 85,
         "job.title"),
    Rule("job.employer.as", _p(
        r"(?:I <adv>work|<am> <adv>working|<have> <adv>(?:worked|been working)|I <adv>(?:started|"
        r"got (?:a|my) (?:new )?job)(?: working)?) as [^,.;]{2,50}? (?:at|for) (?P<v><proper>)"),
        _PERSONA, 80, "job.employer", "User works at {v}.", final=False),
    Rule("job.employer", _p(
        r"(?:I <adv>work|<am> <adv>working|<have> <adv>(?:worked|been working)|I <adv>(?:started|"
        r"start)(?: working| work| a new job| my new job)?|I <adv>got (?:a|my) (?:new )?job)"
        r"(?: in [^,.;]{2,50}?)? (?:at|for) (?P<v><proper>|(?:a|an|the|my) [^,.;]{3,60})"),
        _PERSONA, 80, "job.employer",
        unless=_p(r"\b(?:hours?|minutes?|(?:a|the) (?:company(?! (?:that|in|which|called))|"
                  r"while|day|moment|change|better|good)|years|months|long time|few)\b"
                  r"(?! (?:in|at))")),
    Rule("job.joined", _p(r"(?:I|<have>) <adv>joined (?P<v><proper>)(?= as|\W*$| last| in)"),
         _PERSONA, 75, "job.employer",
         unless=_p(r"\b(?:club|gym|group|class|community|choir|team)\b")),
    Rule("job.title.at", _p(
        r"(?:I <adv>work|<am> <adv>working|<have> <adv>(?:worked|been working)|I <adv>(?:started|"
        r"got (?:a|my) (?:new )?job)(?: working)?) as (?P<job>[^,.;]{2,50}?) (?:at|for) <proper>"),
        # Without the employer: it has a slot of its own and may change before the job does.
        _PERSONA, 85, "job.title", "User works as {job}."),
    Rule("job.title", _p(
        r"(?:I <adv>(?:work|freelance)|<am> <adv>(?:working|employed)|"
        r"<have> <adv>(?:worked|been working)|I <adv>(?:started(?: work(?:ing)?)?|got (?:a|my)"
        r"(?: new)?"
        r" job)) (?:\w+ )?as (?!(?:a|an|the) (?:way|means|hobby|result|kid|child|"
        r"challenge|team|form|side|test|source)\b)(?:an? |the )?(?P<job>[^,.;]{3,60})"),
        _PERSONA, 85, "job.title", unless=_p(r"\bas (?:well|hard|much|fast|long|soon|a team)\b")),
    Rule("job.title.is", _p(
        r"(?:<am> <adv>(?:an? |the )|<have> <adv>been an? |I <adv>(?:became|was promoted to|got "
        r"promoted to|was made) (?:an? |the )?|my (?:job|profession|occupation) is (?:to be |"
        r"being )?"
        r"(?:an? )?)<job>"), _PERSONA, 85, "job.title",
        unless=_p(r"\ba (?:bit|little|lot|huge|big|great|bad|good|terrible|lousy|decent) "
                  r"(?!\w*(?:school|company))")),
    Rule("job.none", _p(r"<am> <adv>(?:unemployed|between jobs|out of work|self-employed|"
                        r"freelancing|on (?:maternity|paternity|parental|sick) leave)"),
         _PERSONA, 80, "job.employer"),
    Rule("job.field", _p(r"I <adv>work (?:in|on|from|night|part|full|remotely|with|mostly|three|"
                         r"four|\d)\b(?! it| this| that| progress)"), _PERSONA, 75,
         unless=_p(r"\b(?:today|tomorrow)\b")),
    Rule("job.own", _p(
        r"I <adv>(?:run|own|manage|lead|founded|co-founded|teach|coach) (?:a|an|my|my own|"
        r"the|our|[a-z]+ (?:to|at|in|for)) [^,.;]{4,}"), _PERSONA, 75,
        unless=_p(r"\b(?:today|errand|risk|marathon|bath|conversation|chat|fever|(?:to|of) "
                  r"think|new (?:show|series|book|game|diet)|fire|day|mile|tab|class yesterday)\b"
                  r"|\bI founded .*\b(?:19|20)\d\d\b")),
    Rule("study", _p(
        r"(?:I <adv>(?:study|major in|majored in|go to|attend)|<am> <adv>(?:studying|majoring in|"
        r"doing (?:a|my) (?:PhD|master's|masters|degree|bachelor's)|enrolled in|in (?:my|the) "
        r"(?:first|second|third|fourth|final|last) year|in (?:high school|college|university|"
        r"grad school|medical school|law school)))\b(?! (?:it|that|this|bed|sleep|the gym|work)\b)"
        r"(?= (?:\S+))?"), _PERSONA, 75,
        unless=_p(r"\b(?:today|tonight|hard for|go to (?:the|bed|work|sleep|my|a|see))\b")),
    Rule("study.degree", _p(r"I(?:'ve| have)? (?:got |hold |have |earned |received )(?:a|an|my) "
                            r"(?:[\w'-]+ ){0,3}(?:degree|diploma|PhD|doctorate|master's|masters|"
                            r"bachelor's|licen[cs]e|certificate)\b"), _PERSONA, 70),
    # --- relationship, family, pets ----------------------------------------------------------
    Rule("relationship", _p(
        r"(?:<am>|we're|we are) <adv>(?:happily |newly |recently |not )?"
        r"(?:married|engaged|single|divorced|widowed|separated|dating|in a (?:\S+ )?relationship)"
        r"\b(?! (?:in|with (?:the|my|this) (?!\w*(?:boy|girl|wife|husb|partner))))"),
        _PERSONA, 80, "relationship"),
    Rule("relationship.got", _p(
        r"(?:(?:I|we|<have>|my \w+ and I) <adv>(?:just )?(?:got|gotten|are getting) |(?:<am>|"
        r"we're) "
        r"getting )(?:re)?(?:married|engaged|divorced|separated)|(?:I|we|my \w+ and I) (?:just |"
        r"recently )?(?:broke up|split up)\b"), _PERSONA, 85, "relationship"),
    Rule("family.name", _p(
        r"my (?P<kin><kin>)(?:'s name(?:'s| is)|(?: is|'s) (?:called|named))"
        r" (?P<v>[^\W\d][\w'-]*)"),
        _PERSONA, 80, "family.{kin}"),
    Rule("family.none", _p(r"<none>(?P<kin><kin>)s?\b"), _PERSONA, 75, "family.{kin}",
         unless=_NOT_HERE),
    Rule("pet.none", _p(r"<none>(?P<pet><pet>|pets?)\b"), _PERSONA, 75, "pet.{pet}",
         unless=_NOT_HERE),
    Rule("family.only_child", _p(r"<am> an only child"), _PERSONA, 75, "family.sibling"),
    Rule("family.age", _p(r"my (?P<kin><kin>) <turned>\b"), _PERSONA, 75, "family.{kin}.age"),
    Rule("family.age.named", _p(r"my <kin>,? (?P<who>(?-i:[A-Z])[\w'-]*),? <turned>\b"),
         _PERSONA, 75, "family.{who}.age"),
    Rule("family.job", _p(r"my (?P<kin><kin>) (?:is|works as) (?:now |actually |not )*an? <job>"),
         _PERSONA, 65, "family.{kin}.job"),
    Rule("family.fact", _p(
        r"my (?P<kin><kin>)(?:,? (?-i:[A-Z][\w'-]*),?| and I)? (?:<adv>|both )"
        r"(?:is|are|was (?:a|an|born|"
        r"diagnosed|promoted)|were|lives?|works?|has|have|loves?|likes?|hates?|plays?|studies|"
        r"study|speaks?|goes to|passed away|died|got|can't eat|"
        r"doesn't (?:eat|like|drink)|moved|graduated|teaches|runs|owns|retired|collects|"
        r"was a)\b"), _PERSONA, 65,
        unless=_p(r"\b(?:happy with|angry|annoyed|mad|sick of|right|wrong|worried|excited|"
                  r"proud|upset|tired|coming|calling|waiting|the best|amazing|awesome|crazy|"
                  r"driving "
                  r"me|(?:is|are) (?:so|too)|very supportive|is (?:really |very )?(?:nice|kind|"
                  r"great)|"
                  r"got (?:me|home|back)|always|have been|has been|feel|boss|manager|today|to be|"
                  r"so much|going to)\b")),
    Rule("pet.name", _p(
        r"my (?:\w+ )?(?P<pet><pet>)(?:'s name(?:'s| is)|(?: is|'s) (?:called|named)) "
        r"(?P<v>(?-i:[A-Z])[\w'-]*)"), _PERSONA, 75, "pet.{pet}"),
    Rule("family.have.one", _p(
        r"(?:<have>|we have|we've) (?:got )?(?:an?|one) (?!second|new)(?:[\w'-]+[- ]){0,4}?"
        r"(?P<kin><kin>)\b(?! (?:question|person|food|toy)|s\b|-| and\b)"),
        _PERSONA, 75, "family.{kin}", unless=_p(r"\b(?:boss|manager)\b")),
    Rule("pet.have.one", _p(
        r"(?:<have>|we have|we've) (?:got )?(?:an?|one) (?!second|new)(?:[\w'-]+[- ]){0,4}?"
        r"(?P<pet><pet>)\b(?! (?:question|person|food|toy)|-| and\b)"),
        _PERSONA, 75, "pet.{pet}"),
    Rule("family.have", _p(
        r"(?:<have>|<have> got|we have|we've got) (?:got )?(?P<n>a|an|another|one|two|three|four|"
        r"five|six|"
        r"\d|twin|several|no) (?:\w+[- ]){0,5}?(?:<kin>s?|<pet>)\b(?! (?:question|person|food|toy)"
        r")"),
        _PERSONA, 75, unless=_p(r"\b(?:boss|manager)\b")),
    Rule("pet.got", _p(
        r"(?:I|we|<have>|we've|my \w+ and I) <adv>(?:adopted|got|rescued|bought) (?:a|an|two|our|"
        r"my|"
        r"three) (?:[\w-]+ ){0,4}?<pet>\b(?! (?:food|toy|bed))"), _PERSONA, 70),
    Rule("pet.fact", _p(
        r"my (?:\w+ )?<pet>(?:,? (?-i:[A-Z][\w'-]*),?)? (?:is (?:a|an|\d+|called|named|allergic|"
        r"diabetic|afraid)|has|loves|hates|died|passed away|was diagnosed)\b"), _PERSONA, 60),
    # --- health and diet ---------------------------------------------------------------------
    Rule("allergy", _p(
        r"(?:<am>|I was) <adv>(?:not )?(?:actually )?(?:severely |mildly |deathly |badly |very |"
        r"highly |slightly )?allergic to (?P<v>[\w -]{2,40}?)"
        r"(?: after all)?<end>"), _PERSONA, 95, "allergy.{v}"),
    Rule("allergy.have", _p(r"<have> (?:got )?(?:an? )?(?:[\w-]+ ){0,3}(?:allerg(?:y|ies)|"
                            r"intolerance)\b"), _PERSONA, 95, unless=_p(r"\bno allerg")),
    Rule("health.have", _p(
        r"(?:<have> (?:got )?|I suffer from |I live with |I was (?:recently )?diagnosed with |"
        r"I'?(?:ve"
        r"| have) been diagnosed with |I got diagnosed with )(?:an? |the |my )?(?:[\w-]+ ){0,3}?"
        r"(?:asthma|diabetes|c(?:o?e)liac(?: disease)?|migraines?|epilepsy|arthritis|hypertension|"
        r"high blood pressure|anemia|anaemia|insomnia|adhd|autism|dyslexia|depression|anxiety|"
        r"eczema|psoriasis|hay fever|tinnitus|scoliosis|ibs|crohn's|cancer|bad (?:knee|back)|"
        r"heart (?:condition|disease|murmur)|high cholesterol|sleep apn[o]?ea|hypothyroidism|"
        r"\w+ (?:disease|disorder|syndrome))\b"), _PERSONA, 95),
    Rule("health.is", _p(
        r"<am> <adv>(?:not )?(?:(?P<v>lactose|gluten)[- ]intolerant|diabetic|asthmatic|"
        r"colou?r-?blind|dyslexic|autistic|pregnant|deaf|blind|hard of hearing|left-handed|celiac|"
        r"coeliac|epileptic|short-sighted|nearsighted|sober)\b"), _PERSONA, 90),
    Rule("health.avoid", _p(
        r"I (?:can't|cannot|can not|mustn't|must not|am not allowed to|'m not allowed to|never|"
        r"don't|"
        r"do not|no longer) (?:eat|have|tolerate|digest) (?P<v>[a-z][\w -]{1,30}?)"
        r"(?: anymore| any more)?<end>"), _PERSONA, 85, "taste.{v}",
        unless=_p(r"\b(?:another|more|much|enough|time|idea|any(?:thing|one)?|to|today|yet|wait|"
                  r"breakfast|it|that|this|a|an|the|my)\b")),
    Rule("health.medicine", _p(
        r"I <adv>(?:take|'m on|am on|use) (?:[\w-]+ ){0,4}(?:medication|medicine|pills?|insulin|"
        r"inhaler|antidepressants|tablets|statins?|blood thinners|metformin|ibuprofen)\b"),
        _PERSONA, 90),
    Rule("diet", _p(
        r"(?:<am>|I(?:'ve| have) (?:been|become|gone|turned)|I (?:became|went|turned|follow|keep|"
        r"eat)) <adv>(?:an? |not |no longer )?(?:strict(?:ly)? |lifelong |mostly )?"
        r"(?P<v>vegetarian|vegan|pescatarian|keto|"
        r"halal|kosher|gluten-free|dairy-free|plant-based|paleo|flexitarian|low-carb)\b"
        r"(?! (?:restaurant|place|recipe))"),
        _PERSONA, 90, "diet"),
    # --- likes, dislikes, favourites ---------------------------------------------------------
    Rule("favourite", _p(
        r"my (?:new |current |all-time |absolute |own )*favou?rite (?P<kind>[a-z][\w -]{1,30}?)"
        r"(?: to \w+)?(?: of all time)? (?:is|are|has always been|has to be|would be|is now) "
        r"(?:now |probably |definitely |still )?(?!you|that|this|the one|when|to)(?P<v>.+)"),
        _PERSONA, 70, "favourite.{kind}",
        unless=_p(r"\bfavou?rite (?:part|thing|moment|memory|aspect|one)s?\b|\bnot\b")),
    Rule("favourite.part", _p(
        r"my (?:absolute )?favou?rite (?:part|thing|aspect) (?:about|of|to) (?!it|that|this)"
        r".{3,60}? "
        r"(?:is|are) \w+"), _PERSONA, 55),
    Rule("favourite.reverse", _p(
        r"(?P<v>(?-i:[A-Z])[\w' -]{1,40}?) (?:is|are) (?:still |now )?my (?:all-time |absolute )?"
        r"favou?rite (?P<kind>[a-z]+)(?=\W*$)"), _PERSONA, 70, "favourite.{kind}",
        unless=_p(r"^(?:it|that|this|which|one|they|he|she|i)\b")),
    Rule("gave_up", _p(
        r"(?:I|<have>) <adv>(?:gave up|given up|stopped|quit) (?:on |drinking |eating |playing )?"
        r"(?P<v>smoking|drinking|[a-z][\w -]{2,25}?)(?: altogether| completely| for good)?<end>"),
        _PERSONA, 65, "taste.{v}",
        unless=_p(r"\b(?:it|that|this|trying|my job|by|working at|here|counting|to|hope|there|the "
                  r"idea|because)\b")),
    Rule("switched", _p(
        r"(?:I|<have>) <adv>switched (?:completely |over )?(?:from (?P<old>[\w -]{2,30}?) )?to "
        r"(?P<v>[\w -]{3,30}?)<end>"), _PERSONA, 65, "taste.{old}",
        unless=_p(r"\bto (?:it|that|this|the other)\b")),
    Rule("prefer", _p(r"I (?:<adv>)(?:prefer|would rather have|'d rather have) (?!to (?:know|see|"
                      r"say))\w.{2,}"), _PERSONA, 60, unless=_VAGUE_THING),
    Rule("language", _p(
        r"my (?:native|first|mother) (?:language|tongue) is (?P<v>\w+)"), _PERSONA, 80,
        "language.native"),
    Rule("language.speak", _p(
        r"I (?:<adv>|can |don't )(?:speak|understand|am fluent in|'m fluent in) "
        r"(?:[a-z]+ )?(?-i:[A-Z][a-z]+(?:ese|ish|ian)|French|German|Dutch|Greek|Thai|Hindi|Urdu|"
        r"Arabic|Korean|Hebrew|Mandarin|Cantonese|Tamil|Czech|Catalan|Swahili|Welsh|Latin|"
        r"Icelandic|"
        r"two languages|three languages|\w+ languages)\b"), _PERSONA, 65),
    Rule("taste", _p(
        r"I <taste>(?:to )?(?P<v>(?:[\w'-]+ ){0,3}?[\w'-]+)(?: anymore| any more| very much| a lot|"
        r" so much)?"
        r"(?=\W*$| because| since|, (?:it|they|so|but|because)\b)"),
        _PERSONA, 60, "taste.{v}", unless=_p(_VAGUE + r"|\b(?:and|or) |\bto\W*$")),
    Rule("taste.more", _p(r"I <taste>(?P<v>\w.*)"), _PERSONA, 60, unless=_p(_VAGUE)),
    Rule("taste.now", _p(
        r"I (?:now |only |mostly )*(?:drink|eat) (?P<v>[\w -]{2,30}?) (?:now|these days|instead)"
        r"\b"),
        _PERSONA, 60, "taste.{v}", unless=_p(r"\b(?:it|that|this|them|more|less|a lot)\b")),
    Rule("taste.not_more", _p(
        r"I (?:don't|do not|no longer) (?:drink|eat|smoke|watch|play|read|use) (?P<v>[\w -]{2,30}?)"
        r"(?: anymore| any more)?<end>"), _PERSONA, 65, "taste.{v}",
        unless=_p(r"\b(?:it|that|this|them|any|much|one|to|my|the|a)\b")),
    Rule("fan", _p(
        r"<am> <adv>(?:not )?(?:so |very |quite |pretty |deeply |super )?(?:(?:a |an )?(?:big |"
        r"huge "
        r"|massive |lifelong |avid |devoted |real )?"
        r"(?:fan of|lover of|into|passionate about|fond of|keen on|"
        r"obsessed with|interested in|afraid of|scared of|terrified of|addicted to)) <thing><end>"),
        _PERSONA, 60, unless=_VAGUE_THING),
    Rule("fear", _p(r"<have> (?:a )?(?:\w+ )?(?:fear|phobia) of \w+"), _PERSONA, 60),
    Rule("passion", _p(
        r"my (?:main |biggest |greatest |new |other |favou?rite )*(?:hobby|hobbies|passion|"
        r"passions|"
        r"dream|goal|ambition|dream job)(?: in life)? (?:is|are|includes?) (?!that|this|it)"
        r"\w.{2,}"),
        _PERSONA, 65),
    # --- what holds for a while --------------------------------------------------------------
    Rule("state.mine", _p(
        r"(?:<am>|we're|we are) <adv>(?:in|at|on|off|away|out of|staying|visiting|travell?ing|"
        r"working|house-sitting|covering|recovering|without|busy|wearing|taking|using)\b.*"),
        _EPISODIC, 65, expires=True, unless=_p(r"\b(?:on (?:it|that)|at (?:it|that))\b")),
    Rule("state.of", _p(
        r"(?:my|our) [\w' -]{2,40}? (?:is|are) <adv>(?:running|in progress|open|closed|down|away|"
        r"on hold|blocked|broken|being \w+|staying|visiting|out|off|under|paused)\b.*"),
        _EPISODIC, 65, expires=True),
    # --- dated events and plans --------------------------------------------------------------
    Rule("event.appointment", _p(
        r"(?:<have>|<have> got|I've got|we have|there is|there's) (?:an? |my |the |another )"
        r"(?:[\w'-]+ ){0,5}?(?:appointment|interview|exam|test|flight|meeting|surgery|operation|"
        r"deadline|check-?up|presentation|wedding|concert|game|match|race|marathon|trip|"
        r"reservation|date|recital|audition|viewing|call|conference|train|party|scan|reunion|"
        r"hearing|shift)\b"), _EPISODIC, 80, dated=True),
    Rule("event.mine", _p(
        r"(?:my|our) (?:[\w'-]+ ){0,4}?(?:appointment|interview|exam|finals|flight|surgery|"
        r"operation|deadline|check-?up|wedding|trip|concert|train|graduation|due date|move|"
        r"vacation|holiday|recital|presentation|defen[cs]e|anniversary|audition|marathon|race) "
        r"(?:is|are|was|starts|got moved|has been moved|moved|will be|leaves)\b"),
        _EPISODIC, 80, dated=True),
    Rule("event.future", _p(
        r"(?:<am>|we're|we are|I'll|I will|we'll|my \w+ and I are) <adv>(?:be )?(?:going to |"
        r"planning "
        r"to |planning |starting|seeing|flying|travell?ing|leaving|visiting|moving|meeting|having|"
        r"running|"
        r"getting|taking|giving|hosting|attending|driving|returning|presenting|defending|expecting|"
        r"fly|travel|visit|start|move|meet|run|have|attend|go|leave|drive|return|be in)\b"),
        _EPISODIC, 75, dated=True,
        unless=_p(r"\b(?:look|try|check|think|see (?:if|how)|let|tell|ask|get back|come back|go "
                  r"to (?:bed|sleep)|start (?:with|by)|have a (?:look|go)|shower|nap)\b")),
    Rule("event.past", _p(
        r"(?:I|we|<have>|my (?:<kin>) and I) <adv>(?:first |once |eventually |successfully )?<past>"
        r"\b(?!(?: \w+)? (?:to (?:say|think|know)|lost in|better|worse|excited|tired|a (?:feeling|"
        r"bit|"
        r"lot|chance to|sense|little))\b)"), _EPISODIC, 65, dated=True, unless=_NO_FACT),
    # --- finished things and long plans without a date ---------------------------------------
    Rule("milestone", _p(
        r"(?:I|<have>|we|we've|my \w+ and I) <adv>(?:just )?(?:finished|completed|submitted|"
        r"defended|"
        r"graduated|got (?:promoted|the job|accepted|into|a promotion)|passed|won (?:a|an|the|my|"
        r"first)|was promoted|was "
        r"accepted|gave birth|had a baby|bought (?:a|our|my) (?:\w+ )?(?:house|flat|car|"
        r"apartment|home|boat|van|bike)|"
        r"published|ran my|broke my|sprained my|signed up for|enrolled|retired|launched|"
        r"opened (?:a|my)|started (?:learning|taking|training|therapy|a|an|my own))\b"),
        _EPISODIC, 65,
        unless=_p(r"\b(?:it|that|this|reading|watching|dinner|lunch|breakfast|eating|the "
                  r"(?:episode|movie|book|show)|out|by|time|work)\b")),
    Rule("project", _p(
        r"(?:<am>|<have> been) <adv>(?:working on (?:a|an|my)|writing (?:a|an|my)|building (?:a|an|"
        r"my)|learning|training for|saving (?:up )?for|preparing for|practi[sc]ing|taking (?:\w+ )?"
        r"(?:lessons|classes)|restoring|renovating) \w+"), _PERSONA, 65,
        unless=_p(r"\b(?:an? (?:email|letter|message|report|post)|something|so much|a lot|"
                  r"more about|that|it|today|how|an? (?:new )?(?:skill|ton)"
                  r"|(?:an?|my) (?:\w+ )?projects?"
                  r"(?! (?:on|to|for|that|with|called|about|of|in)))\b")),
    Rule("plan", _p(
        r"(?:<am> <adv>(?:planning|hoping|going) (?:to (?:move|start|open|apply|retire|buy|travel|"
        r"become|get married|run|learn|visit|study)|a (?:trip|wedding|move|holiday|vacation|party)"
        r")|"
        r"I (?:want|plan|hope|intend) to (?:become|move to|open|retire|start my own|run a|learn))\b"
        r" ?\w*"), _PERSONA, 60,
        unless=_p(r"\b(?:how to|more|from|about|it|that|this|with)\b")),
    # --- habits, possessions, skills ---------------------------------------------------------
    Rule("habit.every", _p(
        r"I <adv>(?:go|run|swim|walk|cycle|wake|get up|play|train|practi[sc]e|meditate|do|drink|"
        r"have|eat|take|read|cook|write|visit|call|volunteer|jog|hike|bike|commute|teach|bake)\b"
        r".{1,80}?\b(?:every (?:other |single )?<day>|on <day>|at weekends|daily|(?:once|twice|"
        r"three "
        r"times) a <day>|each <day>|in the mornings?|before work|after work|at \d)"),
        _PERSONA, 65, unless=_p(r"\b(?:to (?:do|say))\b")),
    Rule("habit.usually", _p(
        r"I (?:usually|always|never|typically|normally|rarely|seldom|hardly ever|almost "
        r"never) (?:go|run|swim|walk|cycle|wake|get up|play|train|meditate|drink|eat|"
        r"take|read|cook|buy|wear|sleep|travel|fly|drive|carry|start|watch|listen|order|work|"
        r"make|bring|keep|use|practi[sc]e|skip) \w+"), _PERSONA, 60,
        unless=_p(r"\b(?:it|them|sure|sense|that|this|for granted)\b")),
    Rule("skill", _p(
        r"I (?:<adv>|can |can't |cannot |don't )(?:play|paint|drive|knit|sew|sing|code|program|"
        r"collect|brew|grow|breed|dance|surf|ski|climb|garden|volunteer|fence|row|sail|own) "
        r"(?:the |in |at |a |an |my own |with )?\w{3,}"), _PERSONA, 60,
        unless=_p(r"\b(?:it|that|this|me crazy|everyone|attention|role|part|yesterday|"
                  r"around|along|today|up|well)\b")),
    Rule("used_to", _p(
        r"I used to (?:live|work|be an?|play|smoke|study|teach|own|have a|drink|run) ?\w+"),
        _PERSONA, 55, unless=_p(r"\bit\b")),
)  # fmt: skip
