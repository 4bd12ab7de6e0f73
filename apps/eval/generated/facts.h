// Sentences hidden in prose, and the questions about them: what a task's context is made of.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/eval/generated/task.h"

namespace mneme::eval {

// A sentence somewhere in the prose, on a line of its own.
struct Needle {
  std::string text;
  int question = -1;  // whose depth this sentence sets; -1: none
};

// Prose of about `chars` characters with the needles at random places, each group of sentences in its order.
Sample hide(const TextSource& prose, std::size_t chars, const std::vector<std::vector<Needle>>& groups,
            std::vector<Question> questions, Rng& rng);

// Several keys, each once: a question has one answer.
class Unique {
 public:
  template <typename F>
  std::string operator()(F&& draw) {
    for (;;) {
      std::string s = draw();
      if (seen_.insert(s).second) return s;
    }
  }

 private:
  std::set<std::string> seen_;
};

// Sentences and questions of one context, with names and keys that occur once.
class Facts {
 public:
  Facts(const TextSource& prose, Rng& rng) : prose_(prose), rng_(rng) {}

  std::string key() {
    return unique_([&] { return prose_.key(rng_); });
  }
  std::string name() {
    return unique_([&] { return TextSource::name(rng_); });
  }
  // What `draw` returns, until it is something new.
  template <typename F>
  std::string other(F&& draw) {
    return unique_(draw);
  }

  void tell(std::vector<Needle> sentences) { groups_.push_back(std::move(sentences)); }
  void ask(std::string question, std::string answer) { questions_.push_back({std::move(question), std::move(answer)}); }
  Sample hidden(std::size_t chars) { return hide(prose_, chars, groups_, std::move(questions_), rng_); }

 private:
  const TextSource& prose_;
  Rng& rng_;
  Unique unique_;
  std::vector<std::vector<Needle>> groups_;
  std::vector<Question> questions_;
};

}  // namespace mneme::eval
