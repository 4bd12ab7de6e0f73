#include "src/server/answer/answer_memory.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "src/base/ascii.h"

namespace mneme::server {
namespace {

using Place = AnswerMemory::Place;

Place after(Place place, std::uint64_t value) {
  place = (place ^ (value + 1)) * 0x9e3779b97f4a7c15;
  return place ^ (place >> 32);
}

Place begin_of(std::string_view salt) {
  Place place = 0;
  for (const char c : salt) place = after(place, static_cast<unsigned char>(c));
  return after(place, 256);
}

// What an answer says, however it is written.
struct Meaning {
  std::string thought, text;
  std::vector<std::pair<std::string, nlohmann::json>> calls;
  bool operator==(const Meaning&) const = default;
};

void add_event(const AnswerEvent& e, std::string& arguments, Meaning& out) {
  if (e.part == AnswerPart::kThought) out.thought += e.text;
  if (e.part == AnswerPart::kText) out.text += e.text;
  if (e.part == AnswerPart::kCallBegin) out.calls.emplace_back(e.text, nlohmann::json());
  if (e.part == AnswerPart::kArguments) arguments += e.text;
  if (e.part != AnswerPart::kCallEnd) return;
  nlohmann::json& read = out.calls.back().second;
  read = nlohmann::json::parse(arguments, nullptr, false);
  if (read.is_discarded()) read = arguments;
  arguments.clear();
}

Meaning meaning_of(std::span<const TokenId> answer, const AnswerReading* reading, bool in_thought,
                   const Tokenizer& tokenizer) {
  Meaning out;
  StreamDecoder decoder(tokenizer);
  std::vector<AnswerEvent> events;
  std::unique_ptr<AnswerParser> parser;
  if (reading != nullptr)
    parser = AnswerParser::make(*reading->marks,
                                {.in_thought = in_thought, .tools = reading->has_tools ? &reading->tools : nullptr});
  const auto add = [&](std::string_view bytes) {
    parser != nullptr ? parser->push(bytes, events) : void(out.text += bytes);
  };
  for (const TokenId id : answer) {
    const std::string_view mark = parser != nullptr ? reading->marks->bytes_of(id) : std::string_view();
    if (!mark.empty()) add(decoder.end_character());
    add(mark);
    add(decoder.push(id));
  }
  add(decoder.finish());
  if (parser != nullptr) parser->finish(events);
  std::string arguments;
  for (const AnswerEvent& e : events) add_event(e, arguments, out);
  out.thought = trimmed(out.thought);
  out.text = trimmed(out.text);
  return out;
}

}  // namespace

Place AnswerMemory::place_of(std::string_view salt, const std::vector<TokenId>& prompt) {
  Place place = begin_of(salt);
  for (const TokenId id : prompt) place = after(place, id);
  return place;
}

void AnswerMemory::drop_last() {
  const auto last = std::prev(entries_.end());
  const auto [begin, end] = by_place_.equal_range(last->place);
  by_place_.erase(std::find_if(begin, end, [last](const auto& named) { return named.second == last; }));
  tokens_ -= last->tokens.size();
  entries_.erase(last);
}

void AnswerMemory::remember(Place place, std::vector<TokenId> answer) {
  if (answer.empty() || answer.size() > most_tokens_) return;
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = by_place_.equal_range(place);
  const auto same = std::find_if(begin, end, [&](const auto& named) { return named.second->tokens == answer; });
  if (same != end) return use(same->second);
  tokens_ += answer.size();
  entries_.push_front({.place = place, .tokens = std::move(answer)});
  by_place_.emplace(place, entries_.begin());
  while (tokens_ > most_tokens_) drop_last();
}

std::vector<TokenId> AnswerMemory::with_own_tokens(std::string_view salt, const std::vector<TokenId>& prompt,
                                                   const AnswerReading* reading, const Tokenizer& tokenizer) {
  const std::lock_guard lock(mutex_);
  std::vector<TokenId> out;
  out.reserve(prompt.size());
  Place place = begin_of(salt);
  const auto append = [&](std::span<const TokenId> ids) {
    for (const TokenId id : ids) place = after(place, id);
    out.insert(out.end(), ids.begin(), ids.end());
  };
  for (std::size_t at = 0; at < prompt.size(); ++at) {
    const auto [begin, end] = by_place_.equal_range(place);
    const auto is_end = [&](TokenId id) { return tokenizer.is_end(id); };
    const auto until = begin == end ? prompt.end() : std::find_if(prompt.begin() + at, prompt.end(), is_end);
    if (until != prompt.end()) {
      const std::span<const TokenId> written(prompt.begin() + at, until);
      const bool in_thought = reading != nullptr && reading->marks->opens_thought(out, tokenizer);
      const auto says = [&](std::span<const TokenId> ids) { return meaning_of(ids, reading, in_thought, tokenizer); };
      std::optional<Meaning> meant;  // by `written`, which is parsed at most once
      const auto own = std::find_if(begin, end, [&](const auto& named) {
        const std::vector<TokenId>& ids = named.second->tokens;
        if (std::ranges::equal(ids, written)) return true;
        if (!meant) meant = says(written);
        return says(ids) == *meant;
      });
      if (own != end) {
        use(own->second);
        append(own->second->tokens);
        at += written.size();
      }
    }
    append({prompt.begin() + at, 1});
  }
  return out;
}

void AnswerRecord::take(const AnswerPiece& piece) {
  if (memory_ == nullptr) return;
  for (const TokenScore& t : piece.tokens) tokens_.push_back(t.token);
  if (piece.end && piece.end->reason == StopReason::kEnd) memory_->remember(place_, std::move(tokens_));
}

}  // namespace mneme::server
