// Small vocabularies, and naive tokenizers that the real ones must agree with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "src/formats/tokenizer_data.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme::test {

// All 256 bytes (ids 0 to 255, in order), then the result of each merge in order. Merges are given as plain bytes.
TokenizerData byte_bpe(const std::vector<std::pair<std::string, std::string>>& merges, std::string pre = "gpt-2");
std::int32_t add_token(TokenizerData& data, std::string text, TokenType type, float score = 0);

// "<unk>" 0, "<s>" 1, "</s>" 2, the 256 byte tokens 3 to 258, then the given tokens; the default score of the n-th is
// -n.
TokenizerData sentence_piece(const std::vector<std::string>& tokens, const std::vector<float>& scores = {});

// A vocabulary of random merges, so that long and unusual merge orders occur.
TokenizerData random_byte_bpe(std::mt19937& random, std::size_t merges, std::string_view letters);
TokenizerData random_sentence_piece(std::mt19937& random, std::size_t tokens, bool equal_scores);

std::string random_bytes(std::mt19937& random, std::size_t length);
// From an alphabet with merges, spaces, multi-byte characters and occasional invalid ones.
std::string random_text(std::mt19937& random, std::size_t length);

// Textbook merging of one piece: the best pair, leftmost first, until none is left.
std::vector<std::int32_t> naive_byte_bpe_piece(const TokenizerData& data, std::string_view piece);
std::vector<std::int32_t> naive_sentence_piece(const TokenizerData& data, std::string_view text);

// "../shared" next to the repository, or the path in MNEME_SHARED.
std::filesystem::path shared_folder();
std::string read_file(const std::filesystem::path& path);

// A rank file (base64 token, space, rank) as merges: every split of a token into two tokens, ordered by the token's
// rank, then by the left part's rank. Equivalent to tiktoken's "merge the pair whose joined token has the lowest rank".
TokenizerData read_tiktoken(const std::filesystem::path& path);

}  // namespace mneme::test
