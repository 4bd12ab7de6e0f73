#include "src/text/answer_grammar/answer_matcher.h"

#include <algorithm>

#include "src/base/ascii.h"
#include "src/text/answer/mark.h"

namespace mneme {
namespace {

using Kind = AnswerStep::Kind;

// kWord: bytes so far, and where they are in the tree of words that it must not be, and one more (0: nowhere).
constexpr std::uint32_t kWordBits = 10;
std::uint32_t word_at(std::uint32_t length, std::int32_t node) {
  return length | static_cast<std::uint32_t>(node + 1) << kWordBits;
}

}  // namespace

AnswerMatcher::State AnswerMatcher::begin() const {
  State state;
  enter(program_->begin, 0, state);
  return state;
}

void AnswerMatcher::push(const Place& place, State& to) {
  if (std::find(to.places.begin(), to.places.end(), place) == to.places.end()) to.places.push_back(place);
}

void AnswerMatcher::enter(StepId id, std::uint64_t bits, State& to) const {
  const AnswerStep& s = at(id);
  switch (s.kind) {
    case Kind::kSplit:
      for (const StepId way : s.ways) enter(way, bits, to);
      return;
    case Kind::kMembers:
      return enter_members(id, bits, to);
    case Kind::kJson: {
      JsonMatcher::Threads from = s.json->begin(s.node), next;
      for (const char c : s.text) {
        s.json->step_all(from, byte_of(c), next);
        from.swap(next);
      }
      for (JsonMatcher::Thread& t : from) to.json.push_back({id, bits, std::move(t)});
      return;
    }
    case Kind::kWord:
      push({id, word_at(0, s.except == nullptr ? -1 : 0), bits}, to);
      if (s.least == 0) enter(s.next, bits, to);
      return;
    case Kind::kWhite:
      push({id, 0, bits}, to);
      return enter(s.next, bits, to);
    case Kind::kProse:
      return push({id, 0, 0}, to);
    default:
      return push({id, 0, bits}, to);
  }
}

void AnswerMatcher::enter_members(StepId id, std::uint64_t bits, State& to) const {
  const AnswerStep& s = at(id);
  const JsonNode& object = s.json->grammar().nodes[s.node];
  const std::uint64_t open = JsonMatcher::open_members(object, bits);
  for (std::size_t i = 0; i < s.ways.size(); ++i) {
    const std::uint64_t bit = std::uint64_t{1} << i;
    if ((open & bit) != 0 && s.ways[i] >= 0) enter(s.ways[i], bits | (object.ordered ? bit | (bit - 1) : bit), to);
  }
  if (s.other >= 0) enter(s.other, bits, to);
  if ((object.required & ~bits) == 0) enter(s.next, 0, to);
}

bool AnswerMatcher::step(const State& from, std::uint8_t byte, State& to) const {
  to.clear();
  for (const Place& place : from.places) step_place(place, byte, to);
  thread_local JsonMatcher::Threads threads;
  for (const JsonPlace& place : from.json) {
    const AnswerStep& s = at(place.step);
    threads.clear();
    s.json->step(place.thread, byte, threads);
    for (JsonMatcher::Thread& t : threads) {
      if (t.done) {
        enter(s.next, place.bits, to);
      } else {
        to.json.push_back({place.step, place.bits, std::move(t)});
      }
    }
  }
  threads.clear();
  return !to.empty();
}

bool AnswerMatcher::step_all(State& state, std::string_view bytes) const {
  State to;
  for (const char c : bytes) {
    if (!step(state, byte_of(c), to)) return false;
    std::swap(state, to);
  }
  return true;
}

void AnswerMatcher::step_place(const Place& from, std::uint8_t byte, State& to) const {
  const AnswerStep& s = at(from.step);
  switch (s.kind) {
    case Kind::kText:
      if (byte_of(s.text[from.at]) != byte) return;
      if (from.at + 1 == s.text.size()) return enter(s.next, from.bits, to);
      return push({from.step, from.at + 1, from.bits}, to);
    case Kind::kWhite:
      return step_white(from, byte, to);
    case Kind::kWord:
      return step_word(from, byte, to);
    case Kind::kProse:
      return step_prose(from, byte, to);
    default:
      return;
  }
}

// at: newlines, then blanks behind the last one.
void AnswerMatcher::step_white(const Place& from, std::uint8_t byte, State& to) const {
  const std::uint32_t lines = from.at / 16, blanks = from.at % 16;
  Place place = from;
  if (byte == '\n' && lines < kMaxLines) {
    place.at = (lines + 1) * 16;
  } else if (byte == ' ' && blanks < (lines > 0 ? kMaxBlanks : 1)) {
    ++place.at;
  } else {
    return;
  }
  push(place, to);
  enter(at(from.step).next, from.bits, to);
}

void AnswerMatcher::step_word(const Place& from, std::uint8_t byte, State& to) const {
  const AnswerStep& s = at(from.step);
  const char c = static_cast<char>(byte);
  if (s.digits && !is_digit(c)) return;
  if (!is_letter_or_digit(c) && c != '_' && c != '-' && s.text.find(c) == std::string::npos) return;
  const std::uint32_t length = (from.at & ((1u << kWordBits) - 1)) + 1;
  std::int32_t node = static_cast<std::int32_t>(from.at >> kWordBits) - 1;
  if (node >= 0) node = s.except->child(node, byte);
  if (length < s.most) push({from.step, word_at(length, node), from.bits}, to);
  const bool excepted = node >= 0 && s.except->node(node).text >= 0;
  if (length >= s.least && !excepted) enter(s.next, from.bits, to);
}

void AnswerMatcher::step_prose(const Place& from, std::uint8_t byte, State& to) const {
  const Prose& prose = *at(from.step).prose;
  const MarkWatch::Step step = prose.watch.step(static_cast<std::int32_t>(from.at), byte);
  std::uint64_t read = from.bits;
  if (!is_white(static_cast<char>(byte)) && read < kLater) ++read;
  if (step.mark >= 0) {
    const Prose::Exit& exit = prose.exits[step.mark];
    if (!exit.at_start || read == static_cast<std::uint64_t>(prose.watch.length(step.mark)))
      return enter(exit.to, 0, to);
  }
  if (read > static_cast<std::uint64_t>(prose.watch.held(step.state))) read = kLater;
  push({from.step, static_cast<std::uint32_t>(step.state), read}, to);
}

bool AnswerMatcher::may_end(const State& state) const {
  return std::any_of(state.places.begin(), state.places.end(), [&](const Place& place) {
    const AnswerStep& s = at(place.step);
    return s.kind == Kind::kEnd || (s.kind == Kind::kProse && s.prose->may_end);
  });
}

const Prose* AnswerMatcher::prose(const State& state) const {
  if (!state.json.empty() || state.places.size() != 1) return nullptr;
  return at(state.places[0].step).prose.get();
}

AnswerMatcher::Next AnswerMatcher::next(const State& state) const {
  Next next;
  for (const Place& place : state.places) {
    const AnswerStep& s = at(place.step);
    if (s.kind != Kind::kProse) continue;
    next.prose = true;
    next.first |= s.prose->watch.waits(static_cast<std::int32_t>(place.at));
    next.anywhere |= s.prose->watch.begins();
  }
  if (next.prose) return next;
  for (const JsonPlace& place : state.json) {
    const JsonMatcher& json = *at(place.step).json;
    const auto room = json.plain_room(place.thread);
    json.not_plain(place.thread, next.first, next.anywhere);
    if (room) next.characters = std::max(next.characters.value_or(0), *room);
  }
  return next;
}

}  // namespace mneme
