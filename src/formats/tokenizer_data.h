// Tokenizer data of a checkpoint; src/text/tokenizer builds a tokenizer from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mneme {

enum class TokenizerKind : std::uint8_t {
  kByteBpe,        // GPT-2 style: bytes mapped to printable characters, merges by rank
  kSentencePiece,  // scores, "▁" for a space, byte fallback <0xNN>
};

// kAbsent: the id has no token (padding of the embedding, a hole between ids). It is never sampled and has no text.
enum class TokenType : std::uint8_t { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte, kAbsent };

// Where "▁" is inserted. kLlamaCpp: by `add_space_prefix`, before the text and after each control token. The others are
// rules of tokenizer.json: Metaspace's prepend_scheme, and normalizers (kReplace only marks spaces).
enum class SpaceRule : std::uint8_t { kLlamaCpp, kAlways, kFirst, kNever, kPrepend, kReplace };

// Flags of an added token of tokenizer.json: white space before or behind it is part of it; it is searched in the
// normalised text, after all tokens without this flag.
inline constexpr std::uint8_t kAddedLstrip = 1, kAddedRstrip = 2, kAddedNormalized = 4;
struct AddedFlags {
  std::int32_t id = 0;
  std::uint8_t flags = 0;
};

struct TokenizerData {
  TokenizerKind kind = TokenizerKind::kByteBpe;
  // Name of the pre-tokenizer pattern ("llama-bpe", "qwen2", "gpt-2", ...); empty when `pre_patterns` is set.
  std::string pre;
  // From tokenizer.json: regular expressions applied in sequence, each splitting the pieces of the previous one.
  std::vector<std::string> pre_patterns;
  bool pre_add_prefix_space = false;                        // tokenizer.json ByteLevel add_prefix_space
  bool ignore_merges = false;                               // a piece that is a token is not merged
  std::vector<std::string> tokens;                          // by id; byte-level BPE: in GPT-2's printable alphabet
  std::vector<float> scores;                                // sentencepiece, else empty
  std::vector<TokenType> types;                             // by id
  std::vector<std::pair<std::string, std::string>> merges;  // by rank; SentencePiece: empty where scores decide
  std::vector<AddedFlags> added_flags;                      // of tokens that have any
  std::optional<std::int32_t> bos, eos, eot, unk, pad;
  std::vector<std::int32_t> eog;  // other ids that end a generation (generation_config.json may list several)
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = true;  // SentencePiece: insert a space before the text
  SpaceRule space_rule = SpaceRule::kLlamaCpp;
  bool split_at_marks = false;  // Metaspace that splits: no merge crosses the front of a "▁"
  bool fuse_unknown = true;     // a run of unknown characters is one unknown token
  std::string chat_template;    // empty: none
  std::vector<std::pair<std::string, std::string>> named_templates;  // further ones: name and source, by name
  std::string response_template;  // JSON: how answers are to be read (transformers 5); empty: none
};

// Ids without a token, ascending.
std::vector<std::int32_t> absent_tokens(const TokenizerData& data);

// Harmony (gpt-oss): <|end|> ends one of an answer's messages, <|return|> and <|call|> the answer.
bool ends_by_return(const std::vector<std::string>& tokens);

}  // namespace mneme
