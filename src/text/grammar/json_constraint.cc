#include "src/text/grammar/json_constraint.h"

#include <algorithm>
#include <array>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/text/grammar/json_matcher.h"

namespace mneme {
namespace {

void set_bit(std::span<std::uint64_t> mask, std::int32_t id) {
  mask[id / 64] |= std::uint64_t{1} << (id % 64);
}

class JsonConstraint final : public TokenConstraint {
 public:
  JsonConstraint(std::shared_ptr<const TokenTrie> trie, JsonMatcher matcher, JsonMatcher::Threads threads)
      : trie_(std::move(trie)), matcher_(std::move(matcher)), threads_(std::move(threads)) {}

  void allowed(std::span<std::uint64_t> mask) const override {
    std::fill(mask.begin(), mask.end(), 0);
    std::size_t room = 0;
    bool all_plain = !threads_.empty();
    for (const auto& t : threads_) {
      const auto more = matcher_.plain_room(t);
      room = std::max(room, more.value_or(0));
      all_plain = all_plain && more.has_value();
    }
    // Plain tokens need no trie walk where the parse with the most room decides.
    const bool plain = all_plain || room >= trie_->longest_plain();
    if (plain) {
      const auto tokens = trie_->plain(room);
      MNEME_CHECK(mask.size() >= tokens.size(), "a mask of {} words for a vocabulary of {}", mask.size(),
                  tokens.size());
      std::copy(tokens.begin(), tokens.end(), mask.begin());
    }
    walk(plain ? trie_->odd() : trie_->all(), mask);
    const bool done = std::any_of(threads_.begin(), threads_.end(), [](const auto& t) { return t.done; });
    const bool stuck = std::all_of(mask.begin(), mask.end(), [](std::uint64_t w) { return w == 0; });
    if (done || stuck)
      for (const TokenId id : trie_->ends()) set_bit(mask, id);
  }

  std::shared_ptr<const TokenConstraint> after(std::int32_t token) const override {
    JsonMatcher::Threads from = threads_, to;
    const auto bytes = token < trie_->vocab_size() ? trie_->bytes(token) : std::string_view();
    for (const char c : bytes) {
      matcher_.step_all(from, c, to);
      from.swap(to);
    }
    return std::make_shared<const JsonConstraint>(trie_, matcher_, std::move(from));
  }

 private:
  void walk(std::span<const TokenTrie::Node> nodes, std::span<std::uint64_t> mask) const {
    thread_local std::array<JsonMatcher::Threads, TokenTrie::kLongest + 1> levels;
    levels[0] = threads_;
    for (std::size_t i = 0; i < nodes.size();) {
      const TokenTrie::Node& n = nodes[i];
      if (!matcher_.step_all(levels[n.depth], n.byte, levels[n.depth + 1u])) {
        i = n.end;
        continue;
      }
      for (std::int32_t t = n.token; t >= 0; t = trie_->next_equal(t)) set_bit(mask, t);
      ++i;
    }
    for (auto& level : levels) level.clear();  // they hold references to the grammar's values
  }

  std::shared_ptr<const TokenTrie> trie_;
  JsonMatcher matcher_;
  JsonMatcher::Threads threads_;
};

}  // namespace

std::shared_ptr<const TokenConstraint> json_constraint(std::shared_ptr<const TokenTrie> trie, JsonGrammar grammar) {
  // Where the document is complete nothing else may follow.
  if (trie->ends().empty())
    fail(ErrorKind::kUnsupported,
         "an answer in JSON: the model's tokenizer has no token that ends an answer (eos), so that none could end");
  const JsonMatcher matcher(std::make_shared<const JsonGrammar>(std::move(grammar)));
  return std::make_shared<const JsonConstraint>(std::move(trie), matcher, matcher.begin());
}

}  // namespace mneme
