#include "tests/text/tokenizer/test_data.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <unordered_map>

#include "src/base/size32.h"
#include "src/text/unicode/byte_chars.h"
#include "src/text/unicode/utf8_step.h"

namespace mneme::test {

std::int32_t add_token(TokenizerData& data, std::string text, TokenType type, float score) {
  data.tokens.push_back(std::move(text));
  data.types.push_back(type);
  if (data.kind == TokenizerKind::kSentencePiece) data.scores.push_back(score);
  return size32(data.tokens) - 1;
}

TokenizerData byte_bpe(const std::vector<std::pair<std::string, std::string>>& merges, std::string pre) {
  TokenizerData data;
  data.pre = std::move(pre);
  for (int b = 0; b < 256; ++b)
    add_token(data, to_byte_chars(std::string(1, static_cast<char>(b))), TokenType::kNormal);
  for (const auto& [left, right] : merges) {
    data.merges.emplace_back(to_byte_chars(left), to_byte_chars(right));
    add_token(data, to_byte_chars(left + right), TokenType::kNormal);
  }
  return data;
}

TokenizerData sentence_piece(const std::vector<std::string>& tokens, const std::vector<float>& scores) {
  TokenizerData data;
  data.kind = TokenizerKind::kSentencePiece;
  data.unk = add_token(data, "<unk>", TokenType::kUnknown);
  data.bos = add_token(data, "<s>", TokenType::kControl);
  data.eos = add_token(data, "</s>", TokenType::kControl);
  data.add_bos = true;
  for (int b = 0; b < 256; ++b) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    add_token(
        data,
        std::string("<0x") + kHex[static_cast<std::size_t>(b) / 16] + kHex[static_cast<std::size_t>(b) % 16] + ">",
        TokenType::kByte);
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    add_token(data, tokens[i], TokenType::kNormal, scores.empty() ? -static_cast<float>(i) : scores[i]);
  }
  return data;
}

TokenizerData random_byte_bpe(std::mt19937& random, std::size_t merges, std::string_view letters) {
  std::vector<std::string> parts;
  for (const char c : letters) parts.emplace_back(1, c);
  std::vector<std::pair<std::string, std::string>> pairs;
  while (pairs.size() < merges) {
    const std::string left = parts[random() % parts.size()], right = parts[random() % parts.size()];
    if (left.size() + right.size() > 12) continue;
    if (std::find(parts.begin(), parts.end(), left + right) != parts.end()) continue;
    parts.push_back(left + right);
    pairs.emplace_back(left, right);
  }
  // A shuffled order includes merges whose parts only a later merge produces.
  std::shuffle(pairs.begin(), pairs.end(), random);
  return byte_bpe(pairs);
}

TokenizerData random_sentence_piece(std::mt19937& random, std::size_t count, bool equal_scores) {
  const std::vector<std::string> letters = {"▁", "a", "b", "c", "ä", "日"};
  std::vector<std::string> tokens = {"▁", "a", "b", "ä"};  // c and 日 occur only inside longer tokens
  std::vector<float> scores;
  while (tokens.size() < count) {
    std::string token;
    const std::size_t length = 2 + random() % 4;
    for (std::size_t i = 0; i < length; ++i) token += letters[random() % letters.size()];
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    scores.push_back(-static_cast<float>(random() % (equal_scores ? 4 : 100000)));
  }
  return sentence_piece(tokens, scores);
}

std::string random_bytes(std::mt19937& random, std::size_t length) {
  std::string out(length, '\0');
  for (char& c : out) c = static_cast<char>(random() & 0xFF);
  return out;
}

std::string random_text(std::mt19937& random, std::size_t length) {
  static const std::vector<std::string> kAlphabet = {
      "a",   "b", "c",    "a",    "b",    "c",  "ab", " ", "  ", "\n", "1",    "é",    "日", "😀",   "ä",   "'s",
      "'LL", ",", "\xE2", "\xFF", "\xC0", "\t", "Z",  ".", "﷽",  "x ", "\r\n", "café", "e",  "the", " the"};
  std::string out;
  while (out.size() < length) out += kAlphabet[random() % kAlphabet.size()];
  return out;
}

std::vector<std::int32_t> naive_byte_bpe_piece(const TokenizerData& data, std::string_view piece) {
  std::map<std::pair<std::string, std::string>, std::size_t> rank;
  for (std::size_t i = 0; i < data.merges.size(); ++i) rank.emplace(data.merges[i], i);
  std::vector<std::string> symbols;
  for (const char c : piece) symbols.push_back(to_byte_chars({&c, 1}));
  for (;;) {
    std::size_t best = symbols.size(), best_rank = data.merges.size();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = rank.find({symbols[i], symbols[i + 1]});
      if (it != rank.end() && it->second < best_rank) best = i, best_rank = it->second;
    }
    if (best == symbols.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<std::int32_t> ids;
  for (const std::string& s : symbols) {
    ids.push_back(
        static_cast<std::int32_t>(std::find(data.tokens.begin(), data.tokens.end(), s) - data.tokens.begin()));
  }
  return ids;
}

std::vector<std::int32_t> naive_sentence_piece(const TokenizerData& data, std::string_view text) {
  std::map<std::string, std::int32_t> vocabulary;
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    if (data.types[i] == TokenType::kNormal) vocabulary.emplace(data.tokens[i], static_cast<std::int32_t>(i));
  }
  std::vector<std::string> symbols;
  if (data.add_space_prefix && !text.empty()) symbols.emplace_back("▁");
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const bool character = step.kind == Utf8Kind::kCharacter;
    const std::size_t n = character ? step.length : 1;
    symbols.emplace_back(text[0] == ' ' ? "▁" : text.substr(0, n));
    text.remove_prefix(n);
  }
  for (;;) {
    std::size_t best = symbols.size();
    float best_score = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = vocabulary.find(symbols[i] + symbols[i + 1]);
      if (it == vocabulary.end()) continue;
      const float score = data.scores[it->second];
      if (best == symbols.size() || score > best_score) best = i, best_score = score;
    }
    if (best == symbols.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<std::int32_t> ids;
  for (const std::string& s : symbols) {
    if (const auto it = vocabulary.find(s); it != vocabulary.end()) {
      ids.push_back(it->second);
    } else {
      for (const char c : s) ids.push_back(3 + static_cast<std::uint8_t>(c));
    }
  }
  return ids;
}

std::filesystem::path shared_folder() {
  const char* given = std::getenv("MNEME_SHARED");
  return given != nullptr ? std::filesystem::path(given) : std::filesystem::path(MNEME_SOURCE_DIR) / ".." / "shared";
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

namespace {

std::string from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t bits = 0;
  int n = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = (bits << 6) | static_cast<std::uint32_t>(kDigits.find(c));
    n += 6;
    if (n >= 8) out.push_back(static_cast<std::uint8_t>(bits >> (n -= 8)));
  }
  return out;
}

}  // namespace

TokenizerData read_tiktoken(const std::filesystem::path& path) {
  TokenizerData data;
  data.pre = "llama-bpe";
  std::vector<std::string> tokens;
  std::istringstream lines(read_file(path));
  for (std::string token, rank; lines >> token >> rank;) tokens.push_back(from_base64(token));
  std::unordered_map<std::string_view, std::size_t> ranks;
  for (std::size_t i = 0; i < tokens.size(); ++i) ranks.emplace(tokens[i], i);
  for (const std::string& token : tokens) {
    std::vector<std::pair<std::size_t, std::size_t>> cuts;  // rank of the left part, offset
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(std::string_view(token).substr(0, cut));
      if (left != ranks.end() && ranks.count(std::string_view(token).substr(cut)) != 0)
        cuts.emplace_back(left->second, cut);
    }
    std::sort(cuts.begin(), cuts.end());
    for (const auto& [rank, cut] : cuts) {
      data.merges.emplace_back(to_byte_chars(token.substr(0, cut)), to_byte_chars(token.substr(cut)));
    }
    add_token(data, to_byte_chars(token), TokenType::kNormal);
  }
  data.bos = add_token(data, "<|begin_of_text|>", TokenType::kControl);
  data.add_bos = true;
  return data;
}

}  // namespace mneme::test
