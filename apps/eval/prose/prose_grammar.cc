#include "apps/eval/prose/prose_grammar.h"

#include <array>

namespace mneme::eval {
namespace {

constexpr std::array<std::string_view, 12> kTitles = {
    "on the {noun} of {town}",
    "what {hero} knew about {s noun}",
    "{a adjective} {noun} and {a adjective} {trade}",
    "a short account of {topic}",
    "how {town} came to have {a noun}",
    "letters about {topic}",
    "the {trade}'s {noun}",
    "notes made in {town}",
    "why nobody repairs the {noun}",
    "{topic}, seen from a kitchen window",
    "{a season} among the {s trade}",
    "against the {adjective} {noun}",
};

constexpr std::array<std::string_view, 64> kSentences = {
    "{hero} {saw} the {noun} {place}, and {saw} it again {time}.",
    "{time}, the {adjective} {noun} {happened} {place}.",
    "nobody in {town} could say who had {made} the {noun}, although the {trade} {claimed} to know.",
    "it is easier to {do} {a noun} than to {do} one that {a trade} has already {made}.",
    "\"{^remark},\" said {friend}, and {happened2}.",
    "\"{^remark},\" said the {trade}. \"{^remark2}.\"",
    "\"{^question}?\" asked {hero}, who had {made} {a adjective} {noun} {time}.",
    "the {s trade} of {town} {adverb} {made2} their {s noun} {place}, {because}.",
    "there was {a noun} {place}, and beside it {a adjective} {noun} which {hero} had never {made}.",
    "we {saw} {a adjective} {noun}, {a noun} and two {s noun}, and went on without {doing} any of them.",
    "{a trade} I knew in {town} kept {a adjective} {noun} {place} and spoke of it {adverb}.",
    "when the {noun} was {adjective}, the {trade} {made2} it; when it was not, the {trade} {happened3}.",
    "{because2}, {friend} {adverb} {made2} the {noun} and left the {noun} alone.",
    "of all that has been written about {topic}, the least {adjective} is about {s noun}.",
    "the {noun} is {adjective}, the {noun} is {adjective}, and between them stands {a trade} with {a noun}.",
    "in {season}, {topic} looks like {a adjective} {noun}; in {season} it looks like nothing at all.",
    "{hero} wrote in a notebook that {a noun} {place} is worth three {s noun} {place}.",
    "it was {friend} who {made2} the {noun}, and {hero} who paid for it.",
    "the {adjective} part of {topic} is not the {noun} but the {noun}.",
    "some say that {topic} began {place}, when {a trade} {made2} {a noun} by mistake.",
    "a child from {town} {saw} the {noun} first and told nobody {time2}.",
    "the road to {town} {happened3} {place}, where {a adjective} {noun} marks the border.",
    "for {number} years the {noun} {happened3}, and for {number} years nobody asked why.",
    "{friend} had {number} {s noun} and a dislike of {s trade}.",
    "{time}, {a adjective} wind {made2} the {noun} {place}, and we {happened2} until it was over.",
    "if {a noun} can be {adjective}, then {topic} can be {adjective} too, or so the {trade} argued.",
    "the {noun} that {hero} {made2} {time} was not the {noun} that {friend} remembered.",
    "{adverb}, and without {doing} the {noun}, the {trade} {happened3} {place}.",
    "to {do} the {noun} properly one needs {a adjective} {noun}, some patience and {a noun}.",
    "{hero} never {made2} {a noun} without {doing} {a noun} first, {because}.",
    "the {s noun} were {adjective}, the {s noun} {adjective}, and the whole of {town} smelled of {stuff}.",
    "between the {noun} and the {noun} lay a heap of {stuff}, which {a trade} {made2} {time}.",
    "there are {number} ways to {do} {a noun}, and {friend} distrusted all of them but one.",
    "{friend} {adverb} denied having {made} the {noun}; the {trade}, asked the same, {happened3}.",
    "what {hero} wanted was {a adjective} {noun}; what came was {stuff}, and plenty of it.",
    "in the archive of {town} lies {a adjective} list of {s noun}, {s noun} and {s trade}.",
    "it took {number} {s trade} and a cart of {stuff} to {do} what one {trade} had {made} {time}.",
    "the {trade}'s daughter {made2} {s noun} out of {stuff} and sold them {place}.",
    "{topic} is a matter of {stuff}, said the one; of {s noun}, said the other; and both {happened2}.",
    "{hero} {saw} {friend} {place}, but neither spoke of the {noun}.",
    "on the table lay {a noun}, {a adjective} {noun} and a piece of {stuff}.",
    "{a adjective} {season} had {made} the {s noun}, and the {s noun} with them.",
    "the older {s trade} still {do} {s noun} with {stuff}; the younger ones buy theirs in {town}.",
    "{because2}, nobody {made2} the {noun} {time}.",
    "one {noun} is {a adjective} thing; {number} {s noun} are {a noun}.",
    "the {noun} {happened3} {place} all {season}, and {friend} {adverb} {made2} it each evening.",
    "whoever has {made} {a noun} knows how {adjective} the {noun} becomes {time2}.",
    "{hero} laughed at the {adjective} {noun}, then {adverb} {made2} it.",
    "at the end of the street {a trade} had opened a shop for {s noun} and {adjective} {stuff}.",
    "the letter spoke of {a noun}, {a adjective} {trade} and the price of {stuff}.",
    "{time}, when {town} was still {a adjective} place, {s trade} {made2} {s noun} {place}.",
    "{friend} said that {topic} had ruined more {s trade} than {stuff} ever did.",
    "the {noun}, {adjective} and {adjective}, {happened3} {place} like {a adjective} {noun}.",
    "not every {trade} who has {made} {a noun} would {do} another.",
    "I have {made} the {noun} {number} times, always {adverb}, and always {place}.",
    "\"{^question}?\" - \"{^remark}.\" That was all that was said about {topic} {time2}.",
    "the law of {town} forbids {s trade} to {do} {s noun} {place}.",
    "under the {noun} they found {stuff}, {a noun}, and {number} {adjective} {s noun}.",
    "{a adjective} {noun} needs no {trade}.",
    "the dog {saw} the {noun} and {happened2}.",
    "{hero} slept badly, dreamed of {s noun}, and {adverb} {made2} {a noun} before breakfast.",
    "as for the {noun}, it {happened3} {place} until {a trade} from {town} {made2} it.",
    "{time} the {trade} and {friend} {made2} the last {noun} together, {because}.",
    "most {s noun} are {adjective} by accident; this {noun} was {adjective} by design.",
};

constexpr std::array<std::string_view, 24> kRemarks = {
    "there is no {noun} here that I have not {made}",
    "{a noun} is {a noun}",
    "you will find the {trade} {place}",
    "the {noun} can wait",
    "I never {made2} {s noun} in {season}",
    "it smells of {stuff}",
    "somebody has {made} my {noun}",
    "{friend} knows more about {s noun} than is good for {a trade}",
    "not {a noun} in the whole of {town}",
    "we shall {do} it {time2}",
    "the {noun} is {adjective} enough",
    "{a adjective} {noun} is better than none",
    "ask the {trade}",
    "my mother {made2} hers {place}",
    "{number} {s noun}, and not one of them {adjective}",
    "that is {a adjective} way to {do} {a noun}",
    "{topic} is not for {s trade}",
    "I would sooner {do} {stuff}",
    "they say it {happened3} {place}",
    "bring {a noun} and some {stuff}",
    "it was {adjective} {time}",
    "one gets used to {s noun}",
    "all {s trade} say so",
    "the {s noun} of {town} are {adjective}, every one",
};

constexpr std::array<std::string_view, 14> kQuestions = {
    "who {made2} the {noun}",
    "where does one buy {stuff} in {season}",
    "is the {noun} still {adjective}",
    "have you {made} the {noun}",
    "what has {topic} to do with {s noun}",
    "why is the {trade} {place}",
    "how many {s noun} does {a trade} need",
    "could you not {do} {a adjective} {noun}",
    "which of the {s trade} {made2} it",
    "does it always smell of {stuff}",
    "what became of the {adjective} {noun}",
    "was that {a noun} or {a noun}",
    "who would {do} such a thing {place}",
    "must it be {adjective}",
};

constexpr std::array<std::string_view, 14> kBecause = {
    "because the {noun} was {adjective}",
    "since {a trade} had told them so",
    "for want of {stuff}",
    "as {s trade} do in {season}",
    "so that the {noun} would not be {made}",
    "though the {noun} was {adjective}",
    "because {friend} had asked for {a noun}",
    "out of respect for the {adjective} {noun}",
    "as long as there was {stuff}",
    "unless {a trade} was near",
    "which is what {town} is known for",
    "and the {noun} {adverb} {happened3}",
    "whatever the {trade} might say",
    "because {stuff} was dear {time}",
};

constexpr std::array<std::string_view, 10> kBecause2 = {
    "since the {noun} was {adjective}",
    "because no {trade} was at hand",
    "having {made} the {noun}",
    "for lack of {stuff}",
    "although {topic} was on everybody's lips",
    "without {doing} the {noun}",
    "as the {noun} {happened3} {place}",
    "once the {stuff} was gone",
    "after {number} days of {season} weather",
    "before {doing} the {s noun}",
};

constexpr std::array<std::string_view, 40> kPlaces = {
    "behind the {noun}",
    "in the yard of the {trade}",
    "at the edge of {town}",
    "under the {adjective} {noun}",
    "on the other side of the river",
    "near the station",
    "in the cellar",
    "in the attic",
    "beside the canal",
    "at the foot of the stairs",
    "in the back room",
    "below the bridge",
    "along the wall",
    "in an empty theatre",
    "over the stable",
    "among the {s noun}",
    "between two {s noun}",
    "in the market",
    "inside the {noun}",
    "on the roof",
    "by the kitchen door",
    "at the crossroads",
    "in the orchard",
    "on a shelf in the library",
    "up the valley",
    "down at the harbour",
    "in the waiting room",
    "outside the school",
    "in a drawer",
    "halfway to {town}",
    "next to the {noun}",
    "in front of the town hall",
    "in the shade of a walnut tree",
    "upstairs",
    "across the square",
    "in the northern suburbs",
    "beyond the last {noun}",
    "on the ferry",
    "around the corner",
    "in the house of {a trade}",
};

constexpr std::array<std::string_view, 26> kTimes = {
    "last {season}",       "on a Monday",       "early in the morning", "long before the war",    "the year before",
    "one evening",         "at noon",           "{number} years ago",   "the next day",           "in those days",
    "shortly after lunch", "every other week",  "towards midnight",     "in the rainy weeks",     "on market days",
    "that same night",     "by candle light",   "after the harvest",    "at the end of {season}", "once",
    "some weeks later",    "in the first hour", "during the holidays",  "before the snow came",   "on a Sunday",
    "when the bells rang",
};

constexpr std::array<std::string_view, 14> kTimes2 = {
    "until {season}", "for a week",         "after dark",      "in the end",    "before supper",
    "for some time",  "as the years go by", "in due course",   "until morning", "for {number} days",
    "when it rains",  "at the first frost", "on the way home", "by and by",
};

constexpr std::array<std::string_view, 22> kHappened2 = {
    "closed the window",
    "went home",
    "poured more tea",
    "said nothing",
    "looked at the ceiling",
    "counted the change",
    "fell asleep",
    "lit the lamp",
    "shook hands",
    "turned the page",
    "laughed for a while",
    "sat down again",
    "put on a coat",
    "asked for the bill",
    "left by the side door",
    "waited for an answer",
    "wrote it down",
    "changed the subject",
    "looked the other way",
    "blew out the candle",
    "ate the last of the bread",
    "whistled a tune",
};

constexpr std::array<Sentences, 11> kForms = {{
    {"title", kTitles},
    {"sentence", kSentences},
    {"remark", kRemarks},
    {"remark2", kRemarks},
    {"question", kQuestions},
    {"because", kBecause},
    {"because2", kBecause2},
    {"place", kPlaces},
    {"time", kTimes},
    {"time2", kTimes2},
    {"happened2", kHappened2},
}};

constexpr std::string_view kNouns =
    "anchor apron arch armchair atlas axle badge bakery balcony ballad bandage banner barge barley barn barometer "
    "barrel basin basket beacon beam bedroom bell bench bicycle blanket boiler bonnet bottle boulder bracelet "
    "branch bridge broom brush bucket buckle bundle burrow button cabin cabinet cable calendar camera candle cannon "
    "canvas caravan carpet carriage castle cavern ceiling chain chapel charter chest chimney cistern clock cloister "
    "closet coffin collar column compass concert contract copper cottage counter cradle crane crater crystal cupboard "
    "curtain cushion cymbal dagger diary dinner doorway drawer dresser drum easel elbow engine envelope estuary fabric "
    "factory farmhouse feather fence ferry fiddle field figure flagpole flask flute folder footpath forest fountain "
    "fraction frame furnace furrow gallery gallows garden garment gateway geyser glacier goblet grammar granary gravel "
    "grotto guitar gutter hammer hammock handle harbour harness harvest hatch haystack hearth hedge helmet hillside "
    "hinge holiday honeycomb hospital hotel island jacket jewel journal journey keyhole kettle kitchen "
    "ladder lagoon lamp landing lantern lattice lawn ledger lemon letter lever library lighthouse limestone lobby "
    "locket lodge lottery machine magnet mansion mantle marble market marsh mattress meadow medal melody memoir mill "
    "mirror mixture model monument mosaic motor mountain museum napkin necklace needle niche notebook novel nursery "
    "office orchard orchestra organ outline oven paddle padlock painting palace paling pamphlet pantry parade "
    "parcel parlour passage pasture patent pavement pavilion pebble pedestal pencil pendulum petition piano picture "
    "pigeon pillar pillow pipe pitcher plank plateau platform plaza pocket portrait postcard pottery prairie printer "
    "prison promise pulley pulpit pump puzzle pyramid quarry quarter quilt racket railing railway rampart raven "
    "reactor receipt recipe record refuge relic reservoir ribbon riddle river rocket rooftop rope rudder saddle "
    "satchel saucer sawmill scale scarf school scroll sculpture shelter shovel shutter sickle signal skeleton sledge "
    "sleeve spade speech spindle spiral sponge square stable stairway statue steamer steeple stocking storage story "
    "stove stream street suitcase summit sundial swamp table tavern teapot telegram telescope temple tent terrace "
    "theatre thicket thimble ticket timber toolbox torch tower tractor treasure trellis trench tribute trophy trumpet "
    "trunk tunnel turbine turret umbrella uniform vacancy valley vault vehicle veranda vessel viaduct village vineyard "
    "violin volcano voyage wagon waistcoat wallet wardrobe warehouse waterfall weapon wharf wheel whistle windmill "
    "window workshop wreath yacht yard zipper";
constexpr std::string_view kAdjectives =
    "able ancient angry annual awkward bare bitter blank blind blue blunt bold bottomless brass brave brief bright "
    "brittle broad broken brown bulky busy calm careful careless cautious cheap cheerful circular civil clean clear "
    "clever clumsy coarse cold common complete copper correct costly covered cracked crimson crooked cruel curious "
    "damp dark decent deep delicate dense deserted distant double doubtful dreary dull dusty eager early earthen "
    "eastern elegant empty endless equal exact exotic faded faint fair faithful famous fashionable fast feeble fertile "
    "festive final fine flat foolish forgotten formal fragile frequent fresh frozen full gentle genuine giant gloomy "
    "golden graceful grand grateful green grey handsome handy harmless heavy helpful hidden hollow hopeful "
    "horizontal humble hungry idle ignorant immense impatient imperfect innocent jealous joyful kind lame large late "
    "lazy leafy light likely little lively lonely long loose lost loud lovely loyal lucky marble married mature "
    "mechanical mellow merry mild minor modern modest muddy mysterious narrow native neat nervous noble noisy northern "
    "novel obvious odd official open orange ordinary original painful painted pale patient peculiar perfect plain "
    "pleasant polite poor popular portable precious private proper proud public purple quaint quick quiet rapid rare "
    "recent reckless red regular remote restless rich rigid ripe robust rough round royal rural rustic sacred sad "
    "scarce secret serious severe shallow sharp shiny short shy silent silly silver simple single slender slight slow "
    "small smooth soft solemn solid sour southern spare spiral splendid square stable steady steep stiff still "
    "stormy straight strange strict striped strong stubborn sturdy sudden swift tall tame tedious temporary tender "
    "thick thin tidy timid tiny tired total tough tropical true ugly unknown upright useful usual vacant vague vain "
    "various vast vertical visible vivid warm weak wealthy weary western wet white whole wicked wide wild wise wooden "
    "worthy yellow young";
constexpr std::string_view kMade =
    "abandoned accepted admired adopted altered analysed arranged assembled avoided baked balanced blamed blessed "
    "borrowed bought built buried burned carried carved changed chased checked selected cleaned closed collected "
    "compared completed concealed copied counted covered crossed damaged decorated defended delayed delivered "
    "described designed destroyed detested discovered divided drained dropped emptied enlarged entered examined "
    "exchanged expected explained finished fixed folded followed forgotten framed gathered greased guarded guessed "
    "hammered handled heated heard hidden hired hoarded identified ignored imitated improved inherited inspected "
    "insulted invented joined judged kept labelled lacquered lent lifted loaded locked lost lowered managed measured "
    "melted mended mentioned missed mistrusted moved nailed named needed neglected noticed obtained offered opened "
    "ordered organised owned packed painted patched photographed planned planted polished poisoned praised prepared "
    "preserved printed promised protected punished purchased questioned raised reached recalled received recognised "
    "recorded reduced refused regretted rejected removed rented repaired repeated replaced reported rescued restored "
    "returned revealed ruined salvaged saved scattered scratched sealed searched selected sharpened shifted signed "
    "sketched sold solved spoiled stained stolen stored straightened studied supplied surrounded surveyed suspected "
    "taken tested threatened tied touched traded trained translated trusted twisted unlocked used valued varnished "
    "visited washed wasted watched watered weighed whitewashed wrapped";
constexpr std::string_view kPast =
    "abandoned accepted admired adopted altered analysed arranged assembled avoided baked balanced blamed blessed "
    "borrowed bought built buried burned carried carved changed chased checked selected cleaned closed collected "
    "compared completed concealed copied counted covered crossed damaged decorated defended delayed delivered "
    "described designed destroyed detested discovered divided drained dropped emptied enlarged entered examined "
    "exchanged expected explained finished fixed folded followed forgot framed gathered greased guarded guessed "
    "hammered handled heated heard hid hired hoarded identified ignored imitated improved inherited inspected "
    "insulted invented joined judged kept labelled lacquered lent lifted loaded locked lost lowered managed "
    "measured melted mended mentioned missed mistrusted moved nailed named needed neglected noticed obtained "
    "offered opened ordered organised owned packed painted patched photographed planned planted polished poisoned "
    "praised prepared preserved printed promised protected punished purchased questioned raised reached recalled "
    "received recognised recorded reduced refused regretted rejected removed rented repaired repeated replaced "
    "reported rescued restored returned revealed ruined salvaged saved scattered scratched sealed searched selected "
    "sharpened shifted signed sketched sold solved spoiled stained stole stored straightened studied supplied "
    "surrounded surveyed suspected took tested threatened tied touched traded trained translated trusted twisted "
    "unlocked used valued varnished visited washed wasted watched watered weighed whitewashed wrapped";
constexpr std::string_view kDo =
    "abandon accept admire adopt alter arrange assemble avoid bake balance blame borrow build bury burn carry carve "
    "change chase check select clean close collect compare complete conceal copy count cover cross damage decorate "
    "defend delay deliver describe design destroy discover divide drain drop empty enlarge enter examine exchange "
    "explain finish fix fold follow forget frame gather guard guess hammer handle heat hide hire identify ignore "
    "imitate improve inherit inspect invent join judge keep lend lift load lock lose lower manage measure melt mend "
    "mention move nail name neglect notice obtain offer open order organise pack paint patch plan plant polish praise "
    "prepare preserve print promise protect punish question raise reach recall receive record reduce refuse regret "
    "reject remove rent repair repeat replace report rescue restore return reveal ruin salvage save scatter scratch "
    "seal search select sharpen shift sketch solve spoil steal store straighten study supply survey suspect test "
    "threaten touch trade translate trust twist unlock value visit wash waste watch water weigh wrap";
constexpr std::string_view kDoing =
    "asking_for breaking building buying carrying checking cleaning closing counting covering crossing describing "
    "drawing emptying fetching finding folding forgetting hiding holding keeping lifting locking losing measuring "
    "mending moving naming noticing opening ordering packing painting passing paying_for polishing praising "
    "remembering repairing returning ruining selling sharpening stealing studying testing touching trusting washing "
    "watching weighing wrapping";
constexpr std::string_view kHappened =
    "appeared arrived ascended awoke balanced began blossomed broke buckled burned ceased changed collapsed creaked "
    "crumbled dangled darkened declined departed descended differed dissolved drifted dwindled echoed emerged expanded "
    "faded failed faltered flickered floated flourished gleamed glittered grew hesitated hovered hummed increased "
    "lasted leaned lingered loomed melted moved murmured paused persisted prospered rattled recovered remained rested "
    "revolved rippled rose rusted sagged settled shivered shone shrank sighed sparkled spread stood stopped stumbled "
    "survived swayed swelled tilted trembled tumbled turned vanished vibrated waited wandered waned withered yielded";
constexpr std::string_view kSaw =
    "admired bought described discovered examined found met missed noticed overlooked passed photographed praised "
    "recognised remembered saw sketched studied visited watched";
constexpr std::string_view kClaimed = "appeared claimed hoped pretended seemed used wanted wished";
constexpr std::string_view kTrades =
    "actor admiral apothecary apprentice architect astronomer author baker banker barber beekeeper bookseller brewer "
    "bricklayer builder butcher captain carpenter cashier chemist clerk coachman cobbler collector composer conductor "
    "constable cook cooper dancer dentist doctor drummer engineer farmer fisherman florist gardener geologist "
    "glassblower goldsmith governor grocer guide hatter historian hunter innkeeper inspector inventor janitor jeweller "
    "judge lawyer librarian locksmith magician magistrate mason mechanic merchant midwife miller miner musician notary "
    "nurse officer optician painter pedlar pharmacist philosopher physician pianist pilot plumber poet porter postman "
    "potter preacher printer professor ranger reporter sailor sculptor secretary sergeant shepherd singer smith "
    "soldier stonemason student surgeon surveyor tailor teacher tinker translator traveller trumpeter tutor "
    "undertaker vicar waiter watchmaker weaver widow";
constexpr std::string_view kAdverbs =
    "accidentally almost always angrily anxiously badly barely boldly briefly calmly carefully casually cautiously "
    "cheaply cheerfully cleverly coldly correctly daily eagerly easily exactly faintly finally firmly frankly freely "
    "frequently gently gladly gradually happily hardly hastily honestly idly kindly lazily lightly loudly merely "
    "modestly nearly neatly nervously never often openly partly patiently politely poorly promptly proudly quickly "
    "quietly rapidly rarely readily regularly reluctantly roughly sadly safely scarcely secretly seldom sharply "
    "silently simply slowly softly solemnly sometimes steadily strangely suddenly swiftly tenderly thoroughly twice "
    "usually warmly weekly widely wisely";
constexpr std::string_view kStuff =
    "alabaster almonds amber ashes bacon bamboo beeswax brandy bronze butter camphor candy cement chalk charcoal "
    "cheese cider cinnamon clay coal cocoa coffee concrete cork cotton cream dust flannel flour ginger glass glue "
    "gold grain granite grass gravel gunpowder honey horsehair incense iron ivory lace lead leather linen liquorice "
    "marmalade milk molasses mortar moss mustard nutmeg oatmeal onions paper parsley peat pepper plaster porcelain "
    "powder resin rubber rust saffron salt sand sawdust seaweed silk slate smoke soap soot spice starch steel stone "
    "straw sugar sulphur tallow tar timber tobacco turpentine varnish velvet vinegar walnuts wax wheat wine wool yarn";
constexpr std::string_view kTopics =
    "the_weather arithmetic old_maps the_price_of_bread night_trains good_handwriting slow_cooking the_tides "
    "beekeeping public_clocks the_alphabet borrowed_books winter_travel the_lost_and_found street_music lamplight "
    "the_making_of_paper small_islands neighbours the_post silence long_division unfinished_houses river_crossings "
    "the_colour_green second_hand_furniture early_rising the_history_of_buttons shadows apprenticeship kite_flying "
    "the_theory_of_gardens cloud_watching lost_umbrellas weights_and_measures amateur_theatre city_pigeons "
    "provincial_museums repairing_clocks the_art_of_queueing marginal_notes rope_making the_northern_lights "
    "keeping_a_diary village_bands the_discovery_of_salt mirrors folding_chairs forgotten_inventions the_evening_paper";
constexpr std::string_view kHeroes =
    "Mrs_Aldworth Mr_Penhale old_Gideon Miss_Tarrant Doctor_Quill Beatrix Ambrose Cordelia Lucian Mrs_Fennimore "
    "Mr_Okafor Ingrid Matthias Rosalind Captain_Brandt Aunt_Sophia Mr_Delacroix Helena Tobias Miss_Yamada "
    "Professor_Lindqvist Marguerite Anselm young_Conrad Mrs_Bellamy Octavia Mr_Havel Philippa Sebastian Winifred";
constexpr std::string_view kTowns =
    "Aldersholt Brackenford Calverton Dunmere Eastwold Farleigh Greywater Hollinbeck Ivelstone Kingsbarrow Larkhaven "
    "Marlstead Netherby Oakhampton Pellworth Queensferry Ravenscar Stonehithe Thornbury Ulverdale Vinebridge "
    "Westerby Yarrowdale Zennick Bellport Coldspring Fernhollow Millbrook Ashcombe Windrush";
constexpr std::string_view kSeasons = "spring summer autumn winter March April June July October November";
constexpr std::string_view kNumbers =
    "two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty sixty";

constexpr std::array<Words, 19> kLists = {{
    {"noun", kNouns},  {"adjective", kAdjectives}, {"made", kMade},         {"made2", kPast},
    {"do", kDo},       {"doing", kDoing},          {"happened", kHappened}, {"happened3", kHappened},
    {"saw", kSaw},     {"claimed", kClaimed},      {"trade", kTrades},      {"adverb", kAdverbs},
    {"stuff", kStuff}, {"topic", kTopics},         {"hero", kHeroes},       {"friend", kHeroes},
    {"town", kTowns},  {"season", kSeasons},       {"number", kNumbers},
}};

}  // namespace

std::span<const Sentences> prose_sentences() {
  return kForms;
}

std::span<const Words> prose_words() {
  return kLists;
}

}  // namespace mneme::eval
