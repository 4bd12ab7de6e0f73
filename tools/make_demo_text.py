#!/usr/bin/env python3
"""Writes demo/harbour.txt: a long tale with a few facts hidden in it, the same on every run and every machine.

    tools/make_demo_text.py > demo/harbour.txt

The tale is made of sentences and turns of phrase written for this project; no other text went into it. The facts are worded as
the shipped model was trained to find them (models/README.md). Which there are, and how to ask for them, is in FACTS below.
"""
import re
import sys

SIZE = 55_000  # bytes of the tale; about 14,000 tokens of the shipped model

# (where in the tale, 0 to 1; the sentence). Each stands on a line of its own.
FACTS = [
    (0.06, "The secret number of copper-lantern is 70935."),
    (0.14, "The house of Moreli stands in Batova."),
    (0.22, "The password for winter-garden is velvet-thunder."),
    (0.31, "Note that river-stone has the number 5582046."),
    (0.38, "Sanilo lives in the house of Moreli."),
    (0.46, "The secret number of silver-harbour is 48213."),
    (0.55, "To open iron-cellar, say amber-whistle."),
    (0.63, "The house of Tepuka stands in Lorina."),
    (0.72, "The secret number of silver-meadow is 91764."),
    (0.80, "One of the special magic numbers for orange-window is: 330172."),
    (0.88, "Dufemi lives in the house of Tepuka."),
    (0.95, "The password for northern-market is paper-kingdom."),
]


class Random:
    """A small generator of its own, so that no version of Python changes the text."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) * n >> 31


SLOTS = {
    "man": "the captain|old Mr. Harding|the harbour-master|Mr. Penrose|my uncle|the doctor|the lieutenant|Squire Aldous|the parson|"
           "the lamplighter|Mr. Whitlow the notary|the schoolmaster|young Robert|the ferryman",
    "woman": "Mrs. Harding|Miss Eleanor|the widow Carey|my aunt|the landlady|Mrs. Penrose|the doctor's sister|old Martha|Lady Aldous|"
             "the schoolmaster's daughter|Miss Whitlow|the captain's wife",
    "folk": "the fishermen|the sailors|the children of the lower town|the merchants|the old women at their doors|the porters|"
            "the apprentices|the men of the lifeboat|the carters|the shipwrights",
    "place": "the quay|the long stone pier|the upper town|the customs-house|the market-square|the church of Saint Anne|the ropewalk|"
             "the lighthouse|the old battery|the shipyard|the mill above the river|the almshouse|the cliff path|the assembly rooms",
    "room": "the parlour|the back kitchen|the library|the long dining-room|the counting-house|the little room over the shop|"
            "the captain's cabin|the vestry|the drawing-room|the taproom of the Anchor",
    "thing": "a brass telescope|a bundle of old letters|a sea-chest bound with iron|a book of tides|a faded chart|a silver watch|"
             "a lantern of green glass|a ring of rusted keys|a model of a three-masted ship|a black umbrella|a basket of herrings|"
             "a roll of sailcloth|a violin without strings",
    "weather": "a thin rain|a cold white fog|a wind out of the north-east|a heavy dew|a pale and watery sunshine|a sharp frost|"
               "a close and thundery heat|a fine drizzle|a stiff breeze from the sea|a fall of soft snow",
    "sky": "grey as slate|of a faint and tender green|heaped with clouds like broken towers|low and yellow|perfectly clear|"
           "streaked with long bars of crimson|dark to the westward|full of hurrying vapours|pale as a shell",
    "time": "Towards evening|Early the next morning|Upon the third day|A little before noon|About the hour of candle-lighting|"
            "At low water|When the clock had struck nine|On the Sunday following|Not long after midnight|Before the week was out|"
            "In the last days of October|Upon market-day",
    "season": "that spring|the whole of that summer|the autumn of that year|a long and bitter winter|the season of the equinoctial gales|"
              "those first weeks of Lent|the month of the herring fishery",
    "manner": "gravely|with a little laugh|in a low voice|without looking up|somewhat drily|after a long silence|with great earnestness|"
              "as if to himself|not unkindly|in the tone of one who has said a thing many times",
    "mannerf": "gravely|with a little laugh|in a low voice|without looking up from her needle|somewhat drily|after a long silence|"
               "with great earnestness|as if to herself|not unkindly|with a touch of colour in her cheek",
    "feeling": "uneasy|strangely content|ashamed of my own curiosity|very much alone|lighter of heart than I had been for months|"
               "like a boy sent out of the room|half inclined to turn back|as though I had been expected there|weary to the bone|"
               "grateful beyond any words I could find",
    "virtue": "patience|plain honesty|a good memory|silence|an obstinate cheerfulness|the habit of early rising|prudence in small matters|"
              "a steady hand|the courage to be dull",
    "ship": "the Constance|the Good Intent|the Halcyon|the Mary Carey|the Northern Light|the Prudence|the Swallow|the Two Brothers",
    "cargo": "timber from the Baltic|coals for the gasworks|oranges and cork|salt and empty barrels|wool and tallow|slates and china clay|"
             "sugar, much of it spoiled|tea, indigo and a few tired passengers|hides that could be smelt across the bay",
    "port": "Lisbon|Bergen|Cadiz|the Azores|Rotterdam|Smyrna|Riga|Bordeaux|the Cape|Genoa",
    "food": "cold mutton and pickled walnuts|a dish of stewed eels|bread, cheese and strong beer|a pie of pigeons|broth and a boiled fowl|"
            "smoked herring and buttered toast|a saffron cake|roast goose with apples",
    "number": "three|five|seven|nine|eleven|twenty|forty",
    "years": "ten years|the better part of his life|six-and-twenty years|two winters|nearly half a century|a single season",
    "subject": "the price of hemp|the new harbour dues|the election|the wreck of the Prudence|the bishop's visit|the state of the roads|"
               "the marriage of the doctor's sister|the repair of the sea-wall|the closing of the copper mine",
    "adj": "narrow|crooked|silent|ancient|steep|half-forgotten|well-swept|melancholy|shabby|respectable",
    "tree": "an old pear-tree|two dusty elms|a fig-tree nailed to the wall|a great copper beech|a row of stunted thorns|"
            "some sycamores bent by the wind",
    "beast": "a tabby cat|an old blind spaniel|a tame jackdaw|a donkey of uncertain temper|a grey parrot|three brown hens",
    "sound": "the grinding of shingle|the cry of gulls|the slow tolling of the bell-buoy|the creak of a sign in the wind|"
             "the tapping of the caulkers' mallets|the singing of the capstan crews|the rattle of a cart going down to the ferry",
    "colour": "blue|grey|dull red|sea-green|snuff-coloured|rusty black|faded yellow",
}

SCENE = """{time} there came up {weather}, and the sky over the bay was {sky}.
{time} I walked out as far as {place}, for I wished to be alone, and found {man} there before me.
The tide was making, and {sound} could be heard from one end of {place} to the other.
It had been {season} when I first saw the harbour, and I have never since thought of it under any other light.
From {place} one looked down upon a huddle of roofs, each a little lower than its neighbour, until the last of them seemed to stand in the water.
The sky was {sky}, and upon the horizon lay a single sail that did not appear to move.
There is a {adj} street behind {place} where the sun comes only at noon, and where {tree} keeps its leaves long after all the others have lost theirs.
{sound_c} ceased towards evening, and in the stillness I could hear the water running under the boats.
All that day {weather} hung over the town, so that {place} was hidden from us, and even the nearest houses looked like drawings in chalk.
Whoever has lived beside the sea will know how a whole town may wait, with its doors open and its work laid by, for {weather} to pass.
The lamps were lit early along {place}, and each of them had about it a ring of {colour} mist.
A smell of tar and of wet rope came up from {place}, and with it {sound}, which I had come to love without knowing it.
Beyond {place} the road climbs between stone walls to a heath where nothing grows but gorse, and where {folk} go on holidays to look at the sea they have been looking at all the week.
{time} the fog lifted, and we saw that {ship} had come in during the night and was lying close under {place}.
The windows of the upper town caught the last of the light, and for some minutes every one of them burned as if there had been a fire behind it.
In front of the almshouse stood {tree}, and beneath it a bench on which {folk} had cut their names for a hundred years.
Rain had fallen before dawn, and the stones of {place} shone like the backs of fishes.
A boat with a {colour} sail was beating up towards the bar, and {folk} had come out to see whether she would do it in one tack or in two.
Nothing could have been quieter than {place} at that hour, when even {beast} that belonged to the ferry slept in the middle of the road.
The wind went round in the night, and by breakfast-time the whole bay was of the colour of pewter, with here and there a line of white.
I remember that the hedges were full of sloes, and that {weather} had made the path beyond {place} so slippery that we went in single file.
Far out, where the {colour} water changed to a deeper shade, the fishing fleet lay as if it had been painted there.
Below the windows of {room} the river ran out over the flats in a hundred small channels, and the wading birds went up and down between them like clerks in an office.
The moon, which was nearly full, stood over {place}, and the shadow of the church lay across the square as black as a pit.
Once in every minute the beam from the lighthouse passed across the ceiling of {room}, and once in every minute I resolved to go to sleep.""".split("\n")

PEOPLE = """{man_c} was a man of few words, who had spent {years} at sea and had brought back from it a limp, {thing} and {beast}.
I have seldom met with a person who had so little to say as {man}, or who said it with so much weight.
{woman_c} had the reputation of being proud; but I believe that she was only shy, and had been told too early that she was handsome.
It was said of {woman} that she had once refused a baronet, and it was certain that she had refused {man}, who bore her no malice for it.
There lived at that time, in a {adj} house near {place}, a gentleman whom everybody called the Admiral, although he had never commanded anything larger than a barge.
{man_c} wore in all weathers a {colour} coat with pewter buttons, and it was by this coat that {folk} knew him half a mile away.
Of {woman} I shall only say that she governed her household by {virtue}, and that I never knew her to raise her voice.
He was one of those men in whom {virtue} takes the place of every other talent, and takes it very well.
{folk_c} looked upon {man} with that mixture of pity and respect which simple people keep for those who read in the daytime.
{woman_c} kept {beast} in {room}, and maintained that it understood everything except flattery.
When {man} was pleased he rubbed his hands slowly together, and when he was angry he did precisely the same, so that strangers were often at a loss.
She had been left a widow at {number}-and-twenty, as {woman} used to say, with nothing in the world but {thing} and a strong constitution.
I can see {man} still, standing at the window of {room} with his hands behind him and his spectacles pushed up into his hair.
{man_c} had but one vanity, which was his handwriting, and but one grief, of which he never spoke.
Nobody could tell how old {woman} was; she had looked the same, according to {folk}, at the time of the great storm.
It is the misfortune of men like {man} that they are trusted by everybody and consulted by none.
The brother of {woman} had gone out to {port} in {ship} and had written home {number} times in as many years.
Two people less like one another than {man} and {woman} could not have been found along the whole of that coast, and they had been friends for longer than I had been alive.
There was about {woman} a kind of stillness, as of a room from which a clock has been removed.
{man_c} had formerly traded in {cargo}, and still judged of every man's character by asking himself whether he would have given him credit.
His face was as brown as a walnut, and so covered with fine lines that it reminded me of one of his own charts.
The youngest of them, a girl of {number} years with {colour} ribbons, was allowed to sit up because it was her birthday, and fell asleep before the candles were brought.""".split("\n")

EVENTS = """{time} {man} came to my door with {thing} under his arm, and asked whether I would be good enough to keep it for him until he should return.
We dined that day upon {food}, and the talk was of {subject}, as it had been every day since I came.
{ship} was expected from {port} with {cargo}, and {folk} had begun to shake their heads when her name was mentioned.
{time} a letter was brought to {woman}, who read it twice, folded it very small, and put it into the fire.
I found in a drawer of {room}, beneath some old newspapers, {thing} which I was quite sure I had never seen before.
{man_c} went up to {place} with a lantern, and did not come back until the church clock had struck {number}.
For {number} days no boat could cross the bar, and there was neither news nor fresh meat in the town.
{time} we were all assembled in {room} when a knock was heard at the street door, and {woman} turned so pale that I set down my cup.
The auction was held at {place}; and there, among a heap of broken chairs, I bought {thing} for less than the price of a dinner.
A subscription was opened for the families of the drowned, and {man}, who was thought to be a miser, put down his name for {number} guineas.
{woman_c} sent {beast} to be looked after by {man}, which was taken by the whole town as a sign that they were reconciled.
When the ship was broken up, they discovered in her hold, under the {cargo}, {thing} wrapped in oilcloth and tied with a {colour} ribbon.
{folk_c} declared that a light had been seen moving about in {place} on {number} nights together, and that no honest man had any business there after dark.
{time} I took my place upon the coach, with {food} in a basket, and {man} beside me, who slept.
We lost our way in {weather}, and should certainly have walked over the edge of the quarry, if {sound} had not told us where we were.
It was decided that {man} should go to {port} by the next packet, and that nothing was to be said of it to {woman}.
{time} the whole of the sea-wall by {place} gave way, and in the morning there were herrings lying in the street.
The key would not turn; and {man}, who had been a locksmith in his youth, sat down on the stairs before it and began to whistle.
In the evening {folk} danced in {room}, and {woman} played for them upon the old harpsichord until two of its strings were broken.
I wrote {number} letters that night, and burned them all, and afterwards slept better than I had done since I left home.
{man_c} laid {thing} upon the table, and for some time nobody in {room} spoke a word.
There was a dispute between {man} and {folk} about {subject}, which ended, as such disputes do, in both parties going to law.
{time} they brought in the mate of {ship}, half drowned, with {thing} still fast in his hand.
At {place} we hired a boat, and were rowed across by a boy who told us, without being asked, the whole history of {subject}.
{woman_c} had been reading aloud; and it was only when the candle began to gutter that we perceived that {man} had left us.
The bells were rung for {ship}, which had been given up, and which came round the point at last with her foremast gone and a signal flying.
My trunk was carried up to a {adj} chamber over {room}, where I found a fire, a dish of {food}, and {beast} asleep upon the bed.""".split("\n")

TALK = """"You will find," said {man} {manner}, "that in this town there is nobody who does not know about {subject}, and nobody who will tell you."
"It is not for myself that I ask," replied {woman} {mannerf}; "but there are those who have been waiting for {ship} these {number} weeks."
"When I was a boy," said {man}, "one could walk from {place} to the bar at low water, and not wet one's shoes."
"You are very good," said {woman} {mannerf}, "but I would rather have {weather} than {food} and an obligation."
"Sir," answered {man}, "I have been {years} in this place, and I have learned in it nothing but {virtue}."
"Have you been down to {place}?" asked {woman}. "They say that the water has never stood so high."
"A man may own {thing}," observed {man} {manner}, "and yet not know the use of it."
"I never speak of {subject} before breakfast," said {woman}, "and seldom afterwards."
"And what became of {ship}?" I asked. "She lies," said {man} {manner}, "where a good many others lie."
"Depend upon it," said {man}, "there is more to be learned from {folk} than from all the books in {room}."
"I do not complain," said {woman} {mannerf}. "I have my health, and {beast}, and a window that looks upon the sea."
"If you should go to {port}," cried {woman}, "you must bring me back {thing}, for I have been promised one since I was a child."
"It was like this," {man} began {manner}; and then, having considered for a while, he said that upon the whole it had not been like that at all.
"There are two kinds of weather on this coast," said {man}: "{weather}, and what comes after it."
"You have forgotten your umbrella," said {woman}; and I understood that the conversation was at an end.
"Let them say what they please of {subject}," said {man}; "they said the same of my father, and he is buried in the chancel."
"I thought that I heard {sound}," whispered {woman}. "It is nothing," said {man}; but he rose and tried the bolts of the door.
"Young man," said {man} {manner}, "the sea gives nothing back; it only lends things, now and then, to make us careless."
"My dear," said {woman} to me, "people who mean to be happy should begin with {food}, and leave the rest to Providence."
"What o'clock is it?" asked {man}. I told him. "Then," said he, "we have still {number} minutes in which to be sensible."
"Nobody has asked my opinion," said {woman} {mannerf}, "and therefore I may give it freely: sell {thing}, pay the rent, and say no more about {subject}."
"I will tell you what I have told no one but {woman}," said {man}; and he drew his chair nearer to the fire.
"Is it true," I inquired, "that {man} once lived at {port}?" "He lived there," said {woman}, "as a candle lives in a draught."
"They may build a new pier," said {man}, "but they will not build another {place_bare}." """.split("\n")

THOUGHT = """I have often reflected that we remember the furniture of our sorrows better than the sorrows themselves, and {thing} will bring back to me what no diary could.
There are houses which seem to listen, and {room} at that hour was one of them.
It is a curious thing that {virtue}, which everybody praises, should be so poor a companion on a wet afternoon.
I felt {feeling}, and for a long while I stood before {place} without being able to say what had brought me there.
Perhaps it is only the young who believe that a secret must be a large thing; the secrets of that town would all have gone into a thimble.
He who has no business in a place sees more of it than he who has, and in the course of {season} I saw a great deal.
My grandfather used to say that a town is like a ship, in that one never hears the noise of it until it stops.
To be useful to nobody for {number} whole days together is a thing that tries the temper more than any hardship.
I had come for a week, and I had stayed for {season}; and still I could not have told {man} why.
Habit is a kind of tide, and carries us a long way from the shore while we suppose that we are lying at anchor.
It occurred to me, as I listened to {sound}, that I had not thought of London for several days.
We are seldom deceived by other people so completely as by our own good intentions, and mine had been excellent.
There was in all this something which made me {feeling}, although I should have been puzzled to give a reason for it.
If I were asked what I learned there, I should have to answer: {virtue}, the names of {number} kinds of knots, and how to hold my tongue.
It seemed to me then, and it seems to me now, that {woman} had understood the matter from the beginning, and had chosen to be kind.
Men talk of {subject} in order that they may not talk of themselves, and in this respect {folk} are no wiser than their betters.
I cannot pretend that I was brave; I was only, as one is at that age, unable to imagine that anything could happen to me.
What is lost at sea is at least lost honestly, and I have sometimes wished that the same could be said of what is lost upon land.
An old house keeps its own hours, and it was useless to tell {woman} that the clock in {room} was {number} minutes slow.
The truth is that I was {feeling}, and that I would have given all I possessed to hear a familiar step upon the stair.
I slept ill, and dreamed that I was reading aloud to {folk} out of a book of which all the leaves were blank.
It is easy to be wise about {season} when it is over, and when those who were foolish in it are at rest in the churchyard.
So the days went by, each of them a little shorter than the last, and I began to count them, as one counts the coins in a purse that is nearly empty.""".split("\n")

CHAPTERS = """In Which I Arrive by the Wrong Coach|The House with the Green Lantern|A Dinner and What Was Not Said at It|The Widow Carey's Lodger|
Of the Fog, and a Conversation in It|The Book of Tides|Market-Day|A Light at the Old Battery|What the Ferryman Remembered|The Auction|
The Two Brothers and the Good Intent|A Letter That Was Burned|The Night of the Great Wind|Miss Eleanor Gives Her Opinion|
The Iron Chest|Among the Shipwrights|A Walk upon the Heath|The Return of the Halcyon|Certain Accounts Are Settled|In Which I Take My Leave""".replace("\n", "").split("|")

# The order of sentences in a paragraph: S scene, P people, E event, T talk, H thought.
SHAPES = ["SSH", "SEP", "EPE", "ET", "T", "TTH", "PPH", "SPEH", "EH", "T", "HSE", "PET", "SEEH", "T", "PH", "ESH", "TP"]


class Writer:
    def __init__(self, seed):
        self.random = Random(seed)
        self.kinds = {"S": SCENE, "P": PEOPLE, "E": EVENTS, "T": TALK, "H": THOUGHT}
        self.waiting = {kind: [] for kind in self.kinds}
        self.recent = {name: [] for name in SLOTS}
        self.seen = set()

    def choose(self, name):
        """One filling of a slot, not one of the last few."""
        options = [o for o in SLOTS[name].split("|") if o not in self.recent[name]]
        option = options[self.random.below(len(options))]
        self.recent[name] = (self.recent[name] + [option])[-min(5, len(SLOTS[name].split("|")) // 2):]
        return option

    def template(self, kind):
        """Every sentence of a kind has its turn before one comes again."""
        if not self.waiting[kind]:
            deck = list(self.kinds[kind])
            for i in range(len(deck) - 1, 0, -1):
                j = self.random.below(i + 1)
                deck[i], deck[j] = deck[j], deck[i]
            self.waiting[kind] = deck
        return self.waiting[kind].pop()

    def fill(self, match):
        name = match.group(1)
        if name == "place_bare":
            return re.sub(r"^the ", "", self.choose("place"))
        if name.endswith("_c"):
            text = self.choose(name[:-2])
            return text[0].upper() + text[1:]
        return self.choose(name)

    def sentence(self, kind):
        while True:
            text = re.sub(r"\{(\w+)\}", self.fill, self.template(kind).strip())
            if text not in self.seen:  # one without slots comes only once
                self.seen.add(text)
                return text

    def paragraph(self):
        shape = SHAPES[self.random.below(len(SHAPES))]
        return " ".join(self.sentence(kind) for kind in shape)


def roman(n):
    out = ""
    for value, sign in [(10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]:
        while n >= value:
            out, n = out + sign, n - value
    return out


def tale():
    writer = Writer(1851)
    size, chapter, facts = 0, 0, list(FACTS)
    parts = ["THE HARBOUR\n\nA Tale\n"]
    while size < SIZE:
        if size >= chapter * SIZE / len(CHAPTERS):
            parts.append(f"\nCHAPTER {roman(chapter + 1)}\n\n{CHAPTERS[chapter]}\n")
            chapter += 1
        parts.append("\n" + writer.paragraph() + "\n")
        size += len(parts[-1])
        while facts and size >= facts[0][0] * SIZE:
            parts.append("\n" + facts.pop(0)[1] + "\n")
    parts.append("\nTHE END\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.buffer.write(tale().encode("utf-8"))
