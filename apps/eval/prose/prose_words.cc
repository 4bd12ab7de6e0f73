#include <array>

#include "apps/eval/prose/prose_grammar.h"

namespace mneme::eval {
namespace {

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

std::span<const Words> prose_words() {
  return kLists;
}

}  // namespace mneme::eval
