#include "src/text/answer_grammar/answer_constraint.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <tuple>

#include "src/base/ascii.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/text/answer/mark.h"
#include "src/text/answer_grammar/answer_matcher.h"
#include "src/text/unicode/utf8_step.h"

namespace mneme {
namespace {

using Mask = std::vector<std::uint64_t>;
using State = AnswerMatcher::State;

void set_bit(std::span<std::uint64_t> mask, TokenId id, bool on = true) {
  const std::uint64_t bit = std::uint64_t{1} << (id % 64);
  on ? mask[id / 64] |= bit : mask[id / 64] &= ~bit;
}

// A byte of a text token. The two that frame special tokens are part of no character: others that are none stand for
// them.
std::uint8_t text_byte(std::uint8_t byte) {
  return byte == byte_of(kTokenBegin) || byte == byte_of(kTokenEnd) ? std::uint8_t{0xC0} : byte;
}

// What all states of an answer share.
class Shared {
 public:
  Shared(std::shared_ptr<const TokenTrie> of_trie, std::shared_ptr<const AnswerMarks> of_marks, AnswerProgram program,
         std::optional<ThoughtBudget> of_budget)
      : trie(std::move(of_trie)),
        marks(std::move(of_marks)),
        matcher(std::make_shared<const AnswerProgram>(std::move(program))),
        budget(std::move(of_budget)) {}

  const std::shared_ptr<const TokenTrie> trie;
  const std::shared_ptr<const AnswerMarks> marks;
  const AnswerMatcher matcher;
  const std::optional<ThoughtBudget> budget;

  struct Known {
    Mask mask;
    bool everything = false;
  };
  // Masks of prose, which a long answer asks for again and again.
  const Known& prose_mask(const State& state) const;
  void fill(const State& state, std::span<std::uint64_t> mask) const;

 private:
  void walk(const State& state, std::span<const TokenTrie::Node> nodes, TokenTrie::Range range,
            std::span<std::uint64_t> mask) const;
  void match_again(const State& state, const AnswerMatcher::Next& next, std::span<std::uint64_t> mask) const;
  void match_special(const State& state, std::span<std::uint64_t> mask) const;
  // `after`: what the bytes lead to.
  bool fits(const State& state, std::string_view bytes, bool special, State& after) const;

  using Key = std::tuple<StepId, std::uint32_t, std::uint64_t>;
  mutable std::mutex mutex_;
  mutable std::map<Key, Known> known_;
};

// Every token that begins with one of these nodes.
void Shared::walk(const State& state, std::span<const TokenTrie::Node> nodes, TokenTrie::Range range,
                  std::span<std::uint64_t> mask) const {
  thread_local std::array<State, TokenTrie::kLongest + 1> levels;
  levels[0] = state;
  std::size_t deepest = 0;
  for (std::size_t i = range.begin; i < range.end;) {
    const TokenTrie::Node& n = nodes[i];
    deepest = std::max<std::size_t>(deepest, n.depth + 1u);
    const bool goes_on = matcher.step(levels[n.depth], text_byte(n.byte), levels[n.depth + 1u]);
    if (goes_on)
      for (std::int32_t t = n.token; t >= 0; t = trie->next_equal(t)) set_bit(mask, t);
    i = goes_on ? i + 1 : n.end;
  }
  for (std::size_t i = 0; i <= deepest; ++i) levels[i].clear();  // they hold references to the grammar's values
}

bool Shared::fits(const State& state, std::string_view bytes, bool special, State& after) const {
  State to;
  after = state;
  for (const char c : bytes) {
    if (!matcher.step(after, special ? byte_of(c) : text_byte(byte_of(c)), to)) return false;
    std::swap(after, to);
  }
  return true;
}

// The tokens of which `next` does not say whether they fit.
void Shared::match_again(const State& state, const AnswerMatcher::Next& next, std::span<std::uint64_t> mask) const {
  State after;
  for (std::size_t byte = 0; byte < next.anywhere.size(); ++byte) {
    if (!next.anywhere.test(byte)) continue;
    for (const TokenId id : trie->with_byte(static_cast<std::uint8_t>(byte)))
      set_bit(mask, id, fits(state, trie->bytes(id), false, after));
  }
  for (std::size_t byte = 0; byte < next.first.size(); ++byte) {
    if (!next.first.test(byte)) continue;
    const TokenTrie::Range range = trie->beginning_with(static_cast<std::uint8_t>(byte));
    for (std::size_t i = range.begin; i < range.end; ++i)
      for (std::int32_t t = trie->all()[i].token; t >= 0; t = trie->next_equal(t)) set_bit(mask, t, false);
    walk(state, trie->all(), range, mask);
  }
}

void Shared::match_special(const State& state, std::span<std::uint64_t> mask) const {
  const Prose* const prose = matcher.prose(state);
  State after;
  for (const auto& [id, bytes] : marks->special_tokens()) {
    bool fit = fits(state, bytes, true, after);
    // A token that ends answers is no part of prose in which they may not end; but it may be the mark of its end.
    if (prose != nullptr && !prose->may_end && std::ranges::find(trie->ends(), id) != trie->ends().end())
      fit = fit && matcher.prose(after) != prose;
    set_bit(mask, id, fit);
  }
}

void Shared::fill(const State& state, std::span<std::uint64_t> mask) const {
  std::fill(mask.begin(), mask.end(), 0);
  const AnswerMatcher::Next next = matcher.next(state);
  const bool alone = state.json.size() == 1 && state.places.empty();
  const bool plain = next.characters && (*next.characters >= trie->longest_plain() || alone);
  const std::span<const std::uint64_t> base = next.prose ? trie->any() : trie->plain(next.characters.value_or(0));
  if (next.prose || plain) {
    MNEME_CHECK(mask.size() >= base.size(), "a mask of {} words for a vocabulary of {}", mask.size(), base.size());
    std::copy(base.begin(), base.end(), mask.begin());
    if (!next.prose) walk(state, trie->odd(), {0, trie->odd().size()}, mask);
    match_again(state, next, mask);
  } else {
    walk(state, trie->all(), {0, trie->all().size()}, mask);
  }
  match_special(state, mask);
  const bool stuck = std::all_of(mask.begin(), mask.end(), [](std::uint64_t w) { return w == 0; });
  if (stuck || matcher.may_end(state))
    for (const TokenId id : trie->ends()) set_bit(mask, id);
}

const Shared::Known& Shared::prose_mask(const State& state) const {
  const AnswerMatcher::Place& place = state.places[0];
  const std::lock_guard lock(mutex_);
  const auto [it, is_new] = known_.try_emplace(Key{place.step, place.at, place.bits});
  if (!is_new) return it->second;
  Known& known = it->second;
  known.mask.resize(trie->any().size());
  fill(state, known.mask);
  Mask all(trie->any().begin(), trie->any().end());
  for (const TokenId id : trie->ends()) set_bit(all, id);
  known.everything = known.mask == all;
  return known;
}

// The bytes of a character that is not complete at the end of a text.
std::string incomplete_end(std::string_view text) {
  for (std::size_t n = std::min<std::size_t>(text.size(), 3); n > 0; --n) {
    const std::string_view end = text.substr(text.size() - n);
    const Utf8Step step = utf8_step(end);
    if (step.kind == Utf8Kind::kIncomplete && step.length == n) return std::string(end);
  }
  return {};
}

class AnswerConstraint final : public TokenConstraint {
 public:
  AnswerConstraint(std::shared_ptr<const Shared> shared, State state)
      : shared_(std::move(shared)), state_(std::move(state)) {
    look_at_budget();
  }

  void allowed(std::span<std::uint64_t> mask) const override {
    if (forced_ > 0) {
      std::fill(mask.begin(), mask.end(), 0);
      return set_bit(mask, close()[forced_ - 1]);
    }
    if (shared_->matcher.prose(state_) == nullptr) return shared_->fill(state_, mask);
    const Mask& known = shared_->prose_mask(state_).mask;
    MNEME_CHECK(mask.size() >= known.size(), "a mask of {} words for a vocabulary of {}", mask.size(), known.size());
    std::copy(known.begin(), known.end(), mask.begin());
    std::fill(mask.begin() + std::ssize(known), mask.end(), 0);
  }

  bool everything() const override {
    return forced_ == 0 && shared_->matcher.prose(state_) != nullptr && shared_->prose_mask(state_).everything;
  }

  std::shared_ptr<const TokenConstraint> after(std::int32_t token) const override {
    auto next = std::make_shared<AnswerConstraint>(*this);
    next->take(token);
    return next;
  }

 private:
  const std::vector<TokenId>& close() const { return shared_->budget->close; }
  bool thinks() const {
    const Prose* const prose = shared_->matcher.prose(state_);
    return prose != nullptr && prose->thought;
  }

  void take(TokenId token) {
    const TokenTrie& trie = *shared_->trie;
    const bool forced = forced_ > 0, thought = thinks();
    const std::string_view special = shared_->marks->bytes_of(token);
    const std::string_view text = token < trie.vocab_size() ? trie.bytes(token) : std::string_view();
    std::string bytes(special.empty() ? text : special);
    if (special.empty())
      for (char& c : bytes) c = static_cast<char>(text_byte(byte_of(c)));
    shared_->matcher.step_all(state_, bytes);
    if (!shared_->budget) return;
    character_ = special.empty() ? incomplete_end(character_ + bytes) : std::string();
    forced_ = forced && forced_ < close().size() ? forced_ + 1 : 0;
    if (!forced && thought) ++thought_;
    if (!forced) look_at_budget();
  }

  // A thought that has had its tokens ends, but for a character that is not complete.
  void look_at_budget() {
    if (shared_->budget && thinks() && thought_ >= shared_->budget->tokens && character_.empty()) forced_ = 1;
  }

  std::shared_ptr<const Shared> shared_;
  State state_;
  std::int32_t thought_ = 0;  // tokens of thoughts
  std::size_t forced_ = 0;    // which token of close() comes next, from 1; 0: none
  std::string character_;     // bytes of one that is not complete
};

}  // namespace

std::shared_ptr<const TokenConstraint> answer_constraint(std::shared_ptr<const TokenTrie> trie,
                                                         std::shared_ptr<const AnswerMarks> marks,
                                                         AnswerProgram program, std::optional<ThoughtBudget> budget) {
  if (trie->ends().empty())
    fail(ErrorKind::kUnsupported,
         "an answer with calls: the model's tokenizer has no token that ends an answer (eos), so that none could end");
  MNEME_CHECK(!budget || !budget->close.empty(), "a budget of thought without tokens that end one");
  auto shared =
      std::make_shared<const Shared>(std::move(trie), std::move(marks), std::move(program), std::move(budget));
  State begin = shared->matcher.begin();
  return std::make_shared<const AnswerConstraint>(std::move(shared), std::move(begin));
}

}  // namespace mneme
