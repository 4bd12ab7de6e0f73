// What users and endpoints name: repositories, files, which of them make a model; where things are kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "apps/hub/file_selection.h"
#include "apps/hub/hub_settings.h"
#include "apps/hub/listing.h"
#include "apps/hub/repo_id.h"
#include "mneme/error.h"

namespace mneme::hub {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";

template <typename F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(HubNames, ARepositoryAndItsQuant) {
  const RepoId id = parse_repo_id("Qwen/Qwen3-8B-GGUF:Q4_K_M");
  EXPECT_EQ(id.owner, "Qwen");
  EXPECT_EQ(id.name, "Qwen3-8B-GGUF");
  EXPECT_EQ(id.quant, "Q4_K_M");
  EXPECT_EQ(parse_repo_id("a/b_.c-d").quant, "");
  EXPECT_EQ(parse_repo_id("a/b:sub/x.gguf").quant, "sub/x.gguf");
}

TEST(HubNames, WhatIsNoRepositoryIsRefused) {
  for (const char* bad : {"", "a", "/b", "a/", "a/b/c", "../b", "a/..", "a/.b", "a/b.", "-a/b", "a/b--c", "a b/c",
                          "a/b:", "a\n/b", "https://huggingface.co/a/b", "a/b%2e"})
    EXPECT_THAT(message_of([&] { parse_repo_id(bad); }), HasSubstr("OWNER/NAME[:QUANT]")) << bad;
  EXPECT_THROW(parse_repo_id("a/" + std::string(97, 'b')), Error);
}

TEST(HubNames, PathsThatLeaveTheFolderAreUnsafe) {
  for (const char* good : {"a", "a/b.gguf", "..a", "a..b", "a b", "ä"}) EXPECT_TRUE(is_safe_path(good)) << good;
  for (const char* bad :
       {"", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/..", ".", "./a", "a\\b", "..\\a", "a\nb", "a\x7f"})
    EXPECT_FALSE(is_safe_path(bad)) << bad;
  EXPECT_FALSE(is_safe_path(std::string("a\0b", 3)));
  EXPECT_FALSE(is_safe_path(std::string(256, 'a')));
}

std::string listing_of(const std::string& siblings) {
  return R"({"sha": ")" + kCommit + R"(", "siblings": [)" + siblings + "]}";
}

TEST(HubListing, SizesAndHashes) {
  const std::string sum(64, 'a'), git(40, 'b');
  const Listing l = parse_listing(
      listing_of(R"({"rfilename": "x.gguf", "size": 5, "blobId": ")" + git + R"(", "lfs": {"sha256": ")" + sum +
                 R"(", "size": 5, "pointerSize": 1}}, {"rfilename": "config.json", "size": 2, "blobId": ")" + git +
                 R"("}, {"rfilename": "plain"})"),
      "hub");
  EXPECT_EQ(l.commit, kCommit);
  ASSERT_EQ(l.files.size(), 3u);
  EXPECT_EQ(l.files[0].sha256, sum);
  EXPECT_EQ(l.files[0].git_sha1, "") << "that of the pointer";
  EXPECT_EQ(l.files[1].git_sha1, git);
  EXPECT_EQ(l.files[1].size, 2);
  EXPECT_FALSE(l.find("plain")->size.has_value());
  EXPECT_EQ(l.find("nowhere"), nullptr);
}

TEST(HubListing, WhatContradictsItselfIsRefused) {
  const auto refusal = [](const std::string& text) { return message_of([&] { parse_listing(text, "hub"); }); };
  EXPECT_THAT(refusal("no json"), HasSubstr("hub"));
  EXPECT_THAT(refusal(R"({"sha": "main", "siblings": []})"), HasSubstr("40 hex digits"));
  EXPECT_THAT(refusal(R"({"sha": "../../../../../../../etc/passwd0000000000", "siblings": []})"), HasSubstr("sha"));
  EXPECT_THAT(refusal(R"({"siblings": []})"), HasSubstr("sha"));
  EXPECT_THAT(refusal(listing_of(R"({"rfilename": "../../.bashrc"})")), HasSubstr("siblings[0].rfilename"));
  EXPECT_THAT(refusal(listing_of(R"({"rfilename": "/etc/passwd"})")), HasSubstr("a path inside the repository"));
  EXPECT_THAT(refusal(listing_of(R"({"rfilename": 3})")), HasSubstr("rfilename"));
  EXPECT_THAT(refusal(listing_of(R"({"rfilename": "a", "size": -1})")), HasSubstr("size"));
  EXPECT_THAT(refusal(listing_of(R"({"rfilename": "a"}, {"rfilename": "a"})")), HasSubstr("twice"));
  EXPECT_THAT(refusal(listing_of(R"({"rfilename": "a", "size": 1, "lfs": {"size": 2}})")), HasSubstr("lfs.size"));
}

FileSelection selected(const std::vector<std::string>& names, const std::string& quant = "") {
  Listing listing{.commit = kCommit};
  for (const std::string& name : names) listing.files.push_back({.path = name});
  return select_files(listing, {.owner = "a", .name = "b", .quant = quant});
}

TEST(HubSelection, TheDefaultIsQ4_K_MThenQ8_0ThenTheOnlyOne) {
  const std::vector<std::string> names = {"m-Q4_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf"};
  EXPECT_EQ(selected(names).gguf, "m-Q4_K_M.gguf");
  EXPECT_EQ(selected({"m-Q4_0.gguf", "m.q8_0.gguf"}).gguf, "m.q8_0.gguf");
  EXPECT_EQ(selected({"README.md", "odd.gguf"}).gguf, "odd.gguf");
  EXPECT_THAT(message_of([] { selected({"m-Q4_0.gguf", "m-Q6_K.gguf"}); }), HasSubstr("m-Q4_0.gguf, m-Q6_K.gguf"));
}

TEST(HubSelection, AQuantIsAWholeWordOfTheName) {
  const std::vector<std::string> names = {"m-IQ4_NL.gguf", "m-Q4_K.gguf",     "m-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf",
                                          "m-bf16.gguf",   "mmproj-F16.gguf", "imatrix_q.gguf"};
  EXPECT_EQ(selected(names, "Q4_K").gguf, "m-Q4_K.gguf");
  EXPECT_EQ(selected(names, "q4_k_m").gguf, "m-Q4_K_M.gguf");
  EXPECT_EQ(selected(names, "Q4_K_XL").gguf, "m-UD-Q4_K_XL.gguf");
  EXPECT_EQ(selected(names, "BF16").gguf, "m-bf16.gguf");
  EXPECT_EQ(selected(names, "m-Q4_K.gguf").gguf, "m-Q4_K.gguf");
  EXPECT_THAT(message_of([&] { selected(names, "F16"); }), HasSubstr("no GGUF file is called F16"));
  EXPECT_THAT(message_of([&] { selected(names, "Q4_NL"); }), HasSubstr("m-IQ4_NL.gguf"));
}

TEST(HubSelection, SeveralThatFitAreListedAndOneCanBeNamed) {
  const std::vector<std::string> names = {"base-Q8_0.gguf", "chat-Q8_0.gguf"};
  EXPECT_THAT(message_of([&] { selected(names, "Q8_0"); }), HasSubstr("-hf a/b:base-Q8_0.gguf"));
  EXPECT_EQ(selected(names, "chat-Q8_0.gguf").gguf, "chat-Q8_0.gguf");
  EXPECT_EQ(selected(names, "chat-q8_0").gguf, "chat-Q8_0.gguf");
}

TEST(HubSelection, AllPartsOfASplitFile) {
  const FileSelection s = selected({"Q4_K_M/m-00002-of-00002.gguf", "Q4_K_M/m-00001-of-00002.gguf", "Q8_0/m.gguf"});
  EXPECT_THAT(s.files, ElementsAre("Q4_K_M/m-00001-of-00002.gguf", "Q4_K_M/m-00002-of-00002.gguf"));
  EXPECT_EQ(s.gguf, "Q4_K_M/m-00001-of-00002.gguf");
  EXPECT_THAT(message_of([] {
                selected({"m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf"});
              }),
              HasSubstr("part 2 of 3"));
}

TEST(HubSelection, AFolder) {
  const FileSelection one = selected({"README.md", "config.json", "tokenizer.json", "model.safetensors",
                                      "onnx/model.onnx", "consolidated.safetensors"});
  EXPECT_THAT(one.files, ElementsAre("config.json", "tokenizer.json", "model.safetensors"));
  EXPECT_EQ(one.gguf + one.index, "");
  const FileSelection split =
      selected({"config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json"});
  EXPECT_EQ(split.index, "model.safetensors.index.json");
  EXPECT_EQ(split.files.back(), split.index);
  const FileSelection named = selected({"config.json", "chat_template.jinja", "model.safetensors",
                                        "additional_chat_templates/tool_use.jinja", "additional_chat_templates/x.txt"});
  EXPECT_THAT(named.files, ElementsAre("config.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja",
                                       "model.safetensors"));
  EXPECT_THAT(message_of([] { selected({"config.json", "pytorch_model.bin"}); }), HasSubstr("neither a GGUF file"));
}

TEST(HubSelection, AnIndexNamesFilesOfTheRepository) {
  Listing listing{.commit = kCommit};
  listing.files = {{.path = "a.safetensors"}, {.path = "b.safetensors"}};
  EXPECT_THAT(files_of_index(R"({"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "a.safetensors"}})",
                             "index", listing),
              ElementsAre("a.safetensors", "b.safetensors"));
  for (const char* bad : {"{}", R"({"weight_map": {"x": "../a.safetensors"}})", R"({"weight_map": {"x": "c"}})"})
    EXPECT_THROW(files_of_index(bad, "index", listing), Error) << bad;
}

// Variables while it lives; all that count are taken away before.
class Environment {
 public:
  explicit Environment(const std::vector<std::pair<const char*, std::string>>& set) {
    for (const char* name : kNames) ::unsetenv(name);
    for (const auto& [name, value] : set) ::setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    for (const char* name : kNames) ::unsetenv(name);
    if (!home_.empty()) ::setenv("HOME", home_.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static constexpr const char* kNames[] = {
      "HOME",           "HF_HOME",           "HF_HUB_CACHE",           "HUGGINGFACE_HUB_CACHE",
      "HF_TOKEN",       "HF_TOKEN_PATH",     "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT",
      "XDG_CACHE_HOME", "HF_HUB_OFFLINE",    "TRANSFORMERS_OFFLINE",   "SSL_CERT_FILE",
      "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"};
  std::string home_ = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
};

TEST(HubSettings, FoldersAreThoseOfThePythonLibrary) {
  using Variables = std::vector<std::pair<const char*, std::string>>;
  const auto cache = [](const Variables& set) {
    const Environment environment(set);
    return hub_settings_from_environment().cache.string();
  };
  EXPECT_EQ(cache({{"HOME", "/h"}}), "/h/.cache/huggingface/hub");
  EXPECT_EQ(cache({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}), "/x/huggingface/hub");
  EXPECT_EQ(cache({{"HOME", "/h"}, {"HF_HOME", "~/hf"}}), "/h/hf/hub");
  EXPECT_EQ(cache({{"HF_HOME", "/hf"}, {"HF_HUB_CACHE", "/c"}}), "/c");
  EXPECT_THAT(message_of([&] { cache({}); }), HasSubstr("HF_HOME"));
}

TEST(HubSettings, EndpointTokenAndOffline) {
  const Environment environment({{"HOME", "/nowhere"},
                                 {"HF_ENDPOINT", "https://mirror.example/"},
                                 {"HF_TOKEN", " hf_abc\n"},
                                 {"CURL_CA_BUNDLE", "/certificates"},
                                 {"HF_HUB_OFFLINE", "true"}});
  const HubSettings s = hub_settings_from_environment();
  EXPECT_EQ(s.endpoint, "https://mirror.example");
  EXPECT_EQ(s.token, "hf_abc");
  EXPECT_EQ(s.ca_file, "/certificates");
  EXPECT_TRUE(s.offline);
}

TEST(HubSettings, ATokenThatWouldBeTwoHeadersAndAnEndpointOfAFileAreRefused) {
  {
    const Environment environment({{"HOME", "/nowhere"}, {"HF_TOKEN", "a\r\nX-Other: b"}});
    EXPECT_THAT(message_of([] { hub_settings_from_environment(); }), HasSubstr("HF_TOKEN"));
  }
  const Environment environment({{"HOME", "/nowhere"}, {"HF_ENDPOINT", "file:///etc"}});
  EXPECT_THAT(message_of([] { hub_settings_from_environment(); }), HasSubstr("HF_ENDPOINT"));
}

}  // namespace
}  // namespace mneme::hub
