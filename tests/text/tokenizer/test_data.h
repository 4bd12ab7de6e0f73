// Small vocabularies, and naive tokenizers that the real ones must agree with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "src/checkpoint/tokenizer_data.h"
#include "src/tokenizer/tokenizer.h"

namespace mneme::test {

// All 256 bytes (ids 0 to 255, in order), then the result of each merge in order. Merges are given as plain bytes.
TokenizerData byte_bpe(const std::vector<std::pair<std::string, std::string>>& merges, std::string pre = "gpt-2");
std::int32_t add_token(TokenizerData& data, std::string text, TokenType type, float score = 0);

// "<unk>" 0, "<s>" 1, "</s>" 2, the 256 byte tokens 3 to 258, then the given tokens; the score of the n-th is -n unless
// given.
TokenizerData sentence_piece(const std::vector<std::string>& tokens, const std::vector<float>& scores = {});

// A vocabulary of random merges, so that long and odd merge orders occur.
TokenizerData random_byte_bpe(std::mt19937& random, std::size_t merges, std::string_view letters);
TokenizerData random_sentence_piece(std::mt19937& random, std::size_t tokens, bool equal_scores);

std::string random_bytes(std::mt19937& random, std::size_t length);
// From an alphabet that makes merges, spaces, multi-byte characters and now and then a broken one.
std::string random_text(std::mt19937& random, std::size_t length);

// Merges one piece by the textbook: look at every pair, take the best, leftmost first, until none is left. Strings
// only.
std::vector<std::int32_t> naive_byte_bpe_piece(const TokenizerData& data, std::string_view piece);
std::vector<std::int32_t> naive_sentence_piece(const TokenizerData& data, std::string_view text);

// "../shared" beside the repository, or where MNEME_SHARED points.
std::filesystem::path shared_folder();
std::string read_file(const std::filesystem::path& path);

// A rank file (base64 token, space, rank) as merges: every cut of a token into two tokens, in the order of the token's
// rank, of equal ones the left part's; which is what tiktoken's "merge the pair whose joined token has the lowest rank"
// comes to.
TokenizerData read_tiktoken(const std::filesystem::path& path);

}  // namespace mneme::test
