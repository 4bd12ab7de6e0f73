// Ends a streamed text before the first of some strings, and never gives out what may turn out to be the beginning of
// one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mneme {

class StopMatcher {
 public:
  // Empty strings never match.
  // keep: the string that ends the text is given out with it; of several at one place the shortest, which is complete
  // first: a longer one would depend on how the text is cut.
  explicit StopMatcher(std::vector<std::string> stop, bool keep = false);

  // What may be given out now that `text` follows. After a match nothing more comes.
  // Ties  the match that begins first ends the text.
  std::string push(std::string_view text);
  // What was held back; empty after a match.
  std::string finish();
  bool matched() const { return matched_; }
  const std::string& matched_string() const { return matched_string_; }  // empty: none

 private:
  struct Match {
    std::size_t begin = std::string::npos, size = 0;
  };
  Match first_match() const;
  std::string end_at(Match match);

  std::vector<std::string> stop_;
  bool keep_;
  std::string pending_;
  bool matched_ = false;
  std::string matched_string_;
};

}  // namespace mneme
