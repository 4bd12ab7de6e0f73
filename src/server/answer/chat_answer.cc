#include "src/server/answer/chat_answer.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace mneme::server {
namespace {

// Letters and digits made of a text, the same for the same text.
std::string letters_of(std::string_view text, std::size_t n) {
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::string out;
  while (out.size() < n) {
    // splitmix64
    hash += 0x9e3779b97f4a7c15;
    std::uint64_t z = hash;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    out += kLetters[(z ^ (z >> 31)) % kLetters.size()];
  }
  return out;
}

}  // namespace

ChatAnswer::ChatAnswer(std::shared_ptr<const AnswerReading> how, const Tokenizer& tokenizer, std::string id)
    : how_(std::move(how)),
      tokenizer_(tokenizer),
      id_(std::move(id)),
      parser_(AnswerParser::make(*how_)),
      decoder_(tokenizer) {}

void ChatAnswer::feed(std::string_view bytes, std::vector<AnswerEvent>& events) {
  parser_->push(bytes, events);
  fed_ += bytes.size();
}

std::vector<ChatAnswer::Piece> ChatAnswer::take(std::string_view text, const std::vector<TokenScore>& tokens) {
  std::vector<AnswerEvent> events;
  const std::size_t end = given_ + text.size();
  for (const TokenScore& token : tokens) {
    const std::string_view mark = how_->marks->bytes_of(token.token);
    if (!mark.empty()) decoded_ += decoder_.end_character().size();
    // The text up to the token, which is in `text`: a token comes with the piece that its own text begins in.
    const std::size_t before = std::min(decoded_, end);
    if (before > given_) {
      feed(text.substr(0, before - given_), events);
      text.remove_prefix(before - given_);
      given_ = before;
    }
    tokens_.push_back({token, fed_ + (decoded_ > given_ ? decoded_ - given_ : 0)});
    if (!mark.empty()) feed(mark, events);
    decoded_ += decoder_.push(token.token).size();
  }
  feed(text, events);
  given_ = end;
  return pieces_of(std::move(events));
}

std::vector<ChatAnswer::Piece> ChatAnswer::finish() {
  std::vector<AnswerEvent> events;
  parser_->finish(events);
  return pieces_of(std::move(events));
}

std::string ChatAnswer::call_id(const AnswerEvent& begin) const {
  if (!begin.id.empty() && !how_->known_ids.contains(begin.id)) return begin.id;
  const std::string seed = id_ + '/' + std::to_string(begin.call);
  return how_->marks->format().short_ids ? letters_of(seed, 9) : "call_" + letters_of(seed, 24);
}

void ChatAnswer::collect(const Piece& piece) {
  const AnswerEvent& e = piece.event;
  if (e.part == AnswerPart::kThought) thought_ += e.text;
  if (e.part == AnswerPart::kText) text_ += e.text;
  if (e.part == AnswerPart::kCallBegin) calls_.push_back({.id = e.id, .name = e.text, .arguments = {}});
  if (e.part == AnswerPart::kArguments) calls_.back().arguments += e.text;
  text_tokens_.insert(text_tokens_.end(), piece.tokens.begin(), piece.tokens.end());
}

std::vector<ChatAnswer::Piece> ChatAnswer::pieces_of(std::vector<AnswerEvent> events) {
  std::vector<Piece> pieces;
  for (AnswerEvent& event : events) {
    Piece piece{.event = std::move(event), .tokens = {}};
    if (piece.event.part == AnswerPart::kCallBegin) piece.event.id = call_id(piece.event);
    while (!tokens_.empty() && tokens_.front().at < piece.event.end) {
      if (!tokenizer_.is_control(tokens_.front().token.token)) {
        if (piece.event.part == AnswerPart::kThought) ++thought_tokens_;
        if (piece.event.part == AnswerPart::kText) piece.tokens.push_back(std::move(tokens_.front().token));
      }
      tokens_.pop_front();
    }
    collect(piece);
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace mneme::server
