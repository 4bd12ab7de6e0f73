#include "src/text/answer_grammar/mark_watch.h"

#include <algorithm>

#include "src/base/size32.h"
#include "src/text/answer/mark.h"

namespace mneme {
namespace {

std::int32_t without_white(std::string_view text) {
  return count32(std::count_if(text.begin(), text.end(), [](char c) { return !is_white(c); }));
}

}  // namespace

// Where the mark goes on behind the white space at this place.
std::uint32_t MarkWatch::skip_white(const Place& place) const {
  const std::string& mark = marks_[place.mark];
  std::uint32_t at = place.at;
  while (at < mark.size() && is_white(mark[at])) ++at;
  return at;
}

MarkWatch::Places MarkWatch::after(const Places& places, std::uint8_t byte, std::int32_t& ended) const {
  Places to;
  const bool white = is_white(static_cast<char>(byte));
  const auto take = [&](const Place& place) {
    const std::string& mark = marks_[place.mark];
    const std::uint32_t at = skip_white(place);
    if (white && at != place.at) to.push_back(place);
    if (static_cast<unsigned char>(mark[at]) != byte) return;
    if (at + 1 == mark.size()) {
      if (ended < 0 || place.mark < ended) ended = place.mark;
      return;
    }
    to.push_back({place.mark, at + 1});
  };
  for (const Place& place : places) take(place);
  for (std::int32_t mark = 0; mark < std::ssize(marks_); ++mark) take({mark, 0});
  std::sort(to.begin(), to.end());
  to.erase(std::unique(to.begin(), to.end()), to.end());
  return to;
}

std::int32_t MarkWatch::state_of(const Places& places, std::vector<Places>& open) {
  const auto [it, is_new] = known_.emplace(places, size32(states_));
  if (!is_new) return it->second;
  states_.emplace_back();
  open.push_back(places);
  return it->second;
}

MarkWatch::MarkWatch(const std::vector<std::string>& marks) : marks_(marks) {
  for (const std::string& mark : marks_) lengths_.push_back(without_white(mark));
  std::vector<Places> open;
  state_of({}, open);
  while (!open.empty()) {
    const Places places = std::move(open.back());
    open.pop_back();
    const std::int32_t from = known_.at(places);
    JsonMatcher::ByteSet bytes;
    std::int32_t held = 0;
    for (const Place& place : places) {
      bytes.set(static_cast<unsigned char>(marks_[place.mark][skip_white(place)]));
      if (skip_white(place) != place.at)
        for (const char c : {' ', '\n', '\t', '\r'}) bytes.set(static_cast<unsigned char>(c));
      held = std::max(held, without_white(std::string_view(marks_[place.mark]).substr(0, place.at)));
    }
    states_[from].waits = bytes;
    for (const std::string& mark : marks_) bytes.set(static_cast<unsigned char>(mark[0]));
    if (places.empty()) states_[from].waits = bytes;
    states_[from].held = held;
    for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
      if (!bytes.test(byte)) continue;
      Step step;
      const Places to = after(places, static_cast<std::uint8_t>(byte), step.mark);
      step.state = state_of(to, open);
      states_[from].steps[static_cast<std::uint8_t>(byte)] = step;
    }
  }
  known_.clear();
}

MarkWatch::Step MarkWatch::step(std::int32_t state, std::uint8_t byte) const {
  const auto& steps = states_[state].steps;
  const auto it = steps.find(byte);
  return it == steps.end() ? Step{} : it->second;
}

}  // namespace mneme
