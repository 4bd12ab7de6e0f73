// Downloads from a hub that breaks off, redirects, lies, and asks for a token.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "apps/hub/curl/digest.h"
#include "apps/hub/curl/http.h"
#include "apps/hub/hub.h"
#include "mneme/error.h"
#include "src/base/backend.h"
#include "tests/apps/hub/hub_server.h"
#include "tests/apps/mneme/program.h"
#include "tests/disk_calls.h"
#include "tests/error_message.h"

namespace mneme::hub_test {
namespace {

namespace fs = std::filesystem;
using cli_test::read_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 3 MB that no other size shares.
const std::string& content() {
  static const std::string bytes = [] {
    std::string out = "GGUF";
    for (std::uint32_t i = 0; out.size() < 3'000'017; ++i) out += static_cast<char>(i * 2654435761U >> 24);
    return out;
  }();
  return bytes;
}

std::map<std::string, HubFile> one_file() {
  return {{"m-Q8_0.gguf", {content(), true}}, {"README.md", {"# tiny\n"}}};
}

bool gets_file(const Request& r) {
  return r.method == "GET" && r.path.ends_with("m-Q8_0.gguf");
}

class HubFetch : public ::testing::Test {
 protected:
  HubFetch() {
    // A proxy of the machine does not know this server.
    for (const char* name : {"http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"}) ::unsetenv(name);
  }

  fs::path fetch(const HubServer& server, const std::string& name = "acme/tiny") {
    settings.endpoint = server.http.url();
    return fetch_at(name);
  }
  fs::path fetch_at(const std::string& name = "acme/tiny") {
    settings.cache = folder.path() / "hub";
    const hub::FetchEvents events{.on_file =
                                      [this](const std::string& path, auto) {
                                        fetched.push_back(path);
                                        progress = 0;
                                      },
                                  .on_progress =
                                      [this](std::int64_t done, std::int64_t total) {
                                        EXPECT_GT(done, progress);
                                        EXPECT_LE(done, total);
                                        progress = done;
                                      },
                                  .on_note =
                                      [this](const std::string& line) {
                                        notes += line + "\n";
                                        progress = 0;
                                      }};
    return hub::fetch_model(name, settings, events);
  }
  template <typename Server>
  std::string refusal(const Server& server, const std::string& name = "acme/tiny") {
    try {
      fetch(server, name);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  fs::path repository() const { return folder.path() / "hub" / "models--acme--tiny"; }
  fs::path blob(const std::string& of = content()) const { return repository() / "blobs" / sha256_of(of); }

  cli_test::TempFolder folder;
  hub::HubSettings settings{.tries = 3, .retry_seconds = 0.01, .connect_seconds = 5, .idle_seconds = 20};
  std::vector<std::string> fetched;
  std::string notes;
  std::int64_t progress = 0;
};

TEST_F(HubFetch, HashesAreThoseOfTheTools) {
  EXPECT_EQ(sha256_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(git_sha1_of("hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");  // git hash-object
}

TEST_F(HubFetch, TheCacheHasTheLayoutOfThePythonLibrary) {
  const HubServer server(one_file());
  const fs::path path = fetch(server);
  EXPECT_EQ(path, repository() / "snapshots" / kCommit / "m-Q8_0.gguf");
  EXPECT_EQ(read_file(path), content());
  EXPECT_EQ(fs::read_symlink(path), fs::path("../../blobs") / sha256_of(content()));
  EXPECT_EQ(read_file(repository() / "refs/main"), kCommit);
  EXPECT_EQ(read_file(blob()), content());
  EXPECT_FALSE(fs::exists(blob().string() + ".incomplete"));
  EXPECT_TRUE(fs::exists(folder.path() / "hub/.locks/models--acme--tiny" / (sha256_of(content()) + ".lock")));
  EXPECT_THAT(fetched, ElementsAre("m-Q8_0.gguf"));
  EXPECT_GE(progress, 3'000'000);
  EXPECT_EQ(server.http.count("GET", "README.md"), 0);
}

TEST_F(HubFetch, WhatIsThereIsNotFetchedAgain) {
  const HubServer server(one_file());
  fetch(server);
  fetch(server);
  EXPECT_EQ(server.http.count("GET", "m-Q8_0.gguf"), 1);
  EXPECT_EQ(server.http.count("GET", "revision/main"), 2);
  // A new snapshot of the same content links the blob that is there.
  fs::remove_all(repository() / "snapshots");
  fetch(server);
  EXPECT_EQ(server.http.count("GET", "m-Q8_0.gguf"), 1);
}

TEST_F(HubFetch, AFolderWithItsIndexAndSmallFilesByTheirGitHash) {
  const std::string index = R"({"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}})";
  const HubServer server({{"config.json", {"{}\n"}},
                          {"tokenizer.json", {"{\"empty\": true}"}},
                          {"merges.txt", {""}},
                          {"model.safetensors.index.json", {index}},
                          {"model-1.safetensors", {content(), true}},
                          {"model-2.safetensors", {content(), true}},
                          {"model-3.safetensors", {"unused", true}}});
  const fs::path path = fetch(server);
  EXPECT_EQ(path, repository() / "snapshots" / kCommit);
  EXPECT_EQ(read_file(path / "config.json"), "{}\n");
  EXPECT_EQ(fs::read_symlink(path / "config.json").filename(), git_sha1_of("{}\n"));
  EXPECT_EQ(read_file(path / "merges.txt"), "");
  EXPECT_EQ(read_file(path / "model-2.safetensors"), content());
  EXPECT_FALSE(fs::exists(path / "model-3.safetensors"));
  settings.offline = true;
  EXPECT_EQ(fetch_at(), path);
  fs::remove(path / "model-1.safetensors");
  EXPECT_THAT(refusal(server), AllOf(HasSubstr("HF_HUB_OFFLINE"), HasSubstr("model-1.safetensors")));
}

TEST_F(HubFetch, FoldersInsideTheRepositoryAndNamesThatAddressesCannotHold) {
  const HubServer server({{"Q8_0/m 1%.gguf", {"GGUF, but small", true}}});
  // The server decodes nothing: it is asked by the encoded name.
  HubServer encoded({{"Q8_0/m%201%25.gguf", {"GGUF, but small", true}}});
  encoded.listing = server.true_listing();
  const fs::path path = fetch(encoded);
  EXPECT_EQ(path.lexically_relative(repository() / "snapshots" / kCommit), "Q8_0/m 1%.gguf");
  EXPECT_EQ(fs::read_symlink(path).parent_path(), "../../../blobs");
  EXPECT_EQ(read_file(path), "GGUF, but small");
}

// Content ends after `n` bytes in the first `times` answers.
HubServer::Fault breaks_after(std::size_t n, int times) {
  const auto left = std::make_shared<std::atomic<int>>(times);
  return [n, left](const Request& r, Connection& c) {
    if (!gets_file(r) || left->fetch_sub(1) <= 0) return false;
    unsigned long begin = 0;
    const std::string range = r.header("range");
    const std::string size = std::to_string(content().size());
    if (std::sscanf(range.c_str(), "bytes=%lu-", &begin) == 1) {
      c.send_head(206, {{"Content-Range", "bytes " + range.substr(6) + "/" + size},
                        {"Content-Length", std::to_string(content().size() - begin)}});
    } else {
      c.send_head(200, {{"Content-Length", size}});
    }
    c.send(std::string_view(content()).substr(begin, n));
    return true;
  };
}

TEST_F(HubFetch, GoesOnWhereTheConnectionBrokeOff) {
  const HubServer server(one_file(), breaks_after(1'000'000, 2));
  EXPECT_EQ(read_file(fetch(server)), content());
  std::vector<std::string> ranges;
  for (const Request& r : server.http.requests())
    if (gets_file(r)) ranges.push_back(r.header("range"));
  EXPECT_THAT(ranges, ElementsAre("", "bytes=1000000-3000016", "bytes=2000000-3000016"));
  EXPECT_THAT(notes, HasSubstr("broke off"));
}

TEST_F(HubFetch, TheNextCommandGoesOnWhereThisOneGaveUp) {
  {
    const HubServer server(one_file(), breaks_after(0, 99));
    EXPECT_THAT(refusal(server), HasSubstr("given up after 3 attempts"));
  }
  {
    settings.tries = 1;
    const HubServer server(one_file(), breaks_after(1'234'567, 99));
    EXPECT_THAT(refusal(server), HasSubstr("the same command goes on from here"));
  }
  EXPECT_EQ(fs::file_size(blob().string() + ".incomplete"), 1'234'567u);
  EXPECT_FALSE(fs::exists(repository() / "refs/main")) << "the snapshot is not complete";
  const HubServer server(one_file());
  EXPECT_EQ(read_file(fetch(server)), content());
  for (const Request& r : server.http.requests())
    EXPECT_EQ(gets_file(r) ? r.header("range") : "", gets_file(r) ? "bytes=1234567-3000016" : "");
}

TEST_F(HubFetch, AServerWithoutRangesStartsFromTheBeginning) {
  settings.tries = 2;
  std::atomic<int> gets = 0;
  const HubServer server(one_file(), [&](const Request& r, Connection& c) {
    if (!gets_file(r)) return false;
    if (gets++ == 0) return breaks_after(1'000'000, 1)(r, c);
    c.answer(200, {}, content());
    return true;
  });
  EXPECT_EQ(read_file(fetch(server)), content());
}

TEST_F(HubFetch, WhatAnEarlierAttemptLeftWrongIsFetchedAgain) {
  fs::create_directories(blob().parent_path());
  for (const std::size_t n : {std::size_t{1000}, content().size(), content().size() + 5}) {
    std::ofstream(blob().string() + ".incomplete", std::ios::binary) << std::string(n, 'x');
    const HubServer server(one_file());
    EXPECT_EQ(read_file(fetch(server)), content()) << n;
    fs::remove_all(repository() / "snapshots");
    fs::remove(blob());
  }
  EXPECT_THAT(notes, HasSubstr("from the beginning"));
}

TEST_F(HubFetch, LargeFilesTakeSeveralRequests) {
  settings.max_request_bytes = 1'200'000;
  const HubServer server(one_file());
  EXPECT_EQ(read_file(fetch(server)), content());
  EXPECT_EQ(server.http.count("GET", "m-Q8_0.gguf"), 3);
}

TEST_F(HubFetch, TheTokenStaysWithTheEndpoint) {
  const HttpServer store([](const Request& r, Connection& c) { HubServer::send_content(r, c, content()); });
  HubServer server(one_file());
  server.redirect = store.url();
  server.token = settings.token = "hf_secret";
  EXPECT_EQ(read_file(fetch(server)), content());
  ASSERT_EQ(store.requests().size(), 1u) << "another port, which is another host to a browser, too";
  EXPECT_EQ(store.requests()[0].header("authorization"), "");
  for (const Request& r : server.http.requests()) EXPECT_EQ(r.header("authorization"), "Bearer hf_secret");
}

TEST_F(HubFetch, ARedirectInsideTheEndpointIsFollowedWithTheToken) {
  HubServer server(one_file(), [](const Request& r, Connection& c) {
    if (r.path.starts_with("/moved") || !r.path.ends_with(".gguf")) return false;
    c.answer(307, {{"Location", "/moved" + r.path}}, "");
    return true;
  });
  server.token = settings.token = "hf_secret";
  const auto inner = server.fault;
  server.fault = [inner](const Request& r, Connection& c) {
    if (!r.path.starts_with("/moved")) return inner(r, c);
    EXPECT_EQ(r.header("authorization"), "Bearer hf_secret");
    if (r.method == "GET") {
      HubServer::send_content(r, c, content());
    } else {
      c.send_head(200,
                  {{"ETag", '"' + sha256_of(content()) + '"'}, {"Content-Length", std::to_string(content().size())}});
    }
    return true;
  };
  EXPECT_EQ(read_file(fetch(server)), content());
}

TEST_F(HubFetch, RedirectsToFilesAndInCirclesAreNotFollowed) {
  const auto moved_to = [](const std::string& target) {
    return [target](const Request& r, Connection& c) {
      if (!gets_file(r)) return false;
      c.answer(302, {{"Location", target}}, "");
      return true;
    };
  };
  EXPECT_THAT(refusal(HubServer(one_file(), moved_to("file:///etc/passwd"))),
              HasSubstr("from http to file is not followed"));
  EXPECT_THAT(refusal(HubServer(one_file(), moved_to("?again"))), HasSubstr("more than 8 redirects"));
}

TEST_F(HubFetch, WithoutATokenAPrivateRepositoryIsRefused) {
  HubServer server(one_file());
  server.token = "hf_secret";
  EXPECT_THAT(refusal(server), AllOf(HasSubstr("401"), HasSubstr("set HF_TOKEN"), HasSubstr("Invalid username")));
  settings.token = "hf_wrong";
  EXPECT_THAT(refusal(server), HasSubstr("the token may not read it"));
  EXPECT_FALSE(fs::exists(repository() / "snapshots"));
}

TEST_F(HubFetch, ARepositoryWithTermsIsNamed) {
  const HubServer server(one_file(), [](const Request& r, Connection& c) {
    if (!r.path.ends_with(".gguf")) return false;
    c.answer(403, {{"X-Error-Code", "GatedRepo"}, {"X-Error-Message", "Ask \x1b[31mfirst"}}, "");
    return true;
  });
  const std::string text = refusal(server);
  EXPECT_THAT(text,
              AllOf(HasSubstr("accept its terms at " + server.http.url() + "/acme/tiny"), HasSubstr("Ask ?[31m")));
}

TEST_F(HubFetch, WhatIsNotThereIsRefused) {
  const HubServer server(one_file());
  EXPECT_THAT(refusal(server, "acme/other"), HasSubstr("404"));
  EXPECT_THAT(refusal(server, "acme/tiny:Q4_K_M"), AllOf(HasSubstr("no GGUF file"), HasSubstr("m-Q8_0.gguf")));
  EXPECT_THAT(refusal(server, "tiny"), HasSubstr("OWNER/NAME"));
}

TEST_F(HubFetch, ABusyEndpointIsAskedAgainWhenItSays) {
  std::atomic<int> times = 2;
  const HubServer server(one_file(), [&](const Request& r, Connection& c) {
    if (!r.path.ends_with("revision/main") || times-- <= 0) return false;
    c.answer(429, {{"Retry-After", "1"}}, "");
    return true;
  });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(read_file(fetch(server)), content());
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1900));
  EXPECT_THAT(notes, HasSubstr("answers 429"));
}

TEST_F(HubFetch, AnEndpointThatAsksForHoursIsNotWaitedFor) {
  const HubServer server(one_file(), [](const Request&, Connection& c) {
    c.answer(503, {{"Retry-After", "7200"}}, "");
    return true;
  });
  EXPECT_THAT(refusal(server), AllOf(HasSubstr("answers 503"), HasSubstr("7200 s")));
}

TEST_F(HubFetch, AnotherHashIsNotKept) {
  std::string other = content();
  other[2'000'000] ^= 1;
  const HubServer server(one_file(), [&](const Request& r, Connection& c) {
    if (!gets_file(r)) return false;
    HubServer::send_content(r, c, other);
    return true;
  });
  EXPECT_THAT(refusal(server), AllOf(HasSubstr(sha256_of(other)), HasSubstr(sha256_of(content()))));
  EXPECT_FALSE(fs::exists(blob()));
  EXPECT_FALSE(fs::exists(blob().string() + ".incomplete"));
  EXPECT_FALSE(fs::exists(repository() / "snapshots"));
}

TEST_F(HubFetch, ASmallFileOfAnotherGitHashIsNotKept) {
  const std::string config = "{\"n\": 1}\n", other = "{\"n\": 3}\n";
  const HubServer server(
      {{"config.json", {config}}, {"tokenizer.json", {"{}"}}, {"model.safetensors", {content(), true}}},
      [&](const Request& r, Connection& c) {
        if (r.method != "GET" || !r.path.ends_with("config.json")) return false;
        HubServer::send_content(r, c, other);
        return true;
      });
  EXPECT_THAT(refusal(server), AllOf(HasSubstr(git_sha1_of(other)), HasSubstr(git_sha1_of(config))));
  const fs::path blobs = repository() / "blobs";
  EXPECT_FALSE(fs::exists(blobs / git_sha1_of(config)));
  EXPECT_FALSE(fs::exists(blobs / (git_sha1_of(config) + ".incomplete")));
  EXPECT_FALSE(fs::exists(repository() / "snapshots" / kCommit / "config.json"));
}

// A full disk or a crash may leave a file shorter than it was.
TEST_F(HubFetch, ABlobOfAnotherSizeIsFetchedAgain) {
  const HubServer server(one_file());
  fetch(server);
  fs::resize_file(blob(), content().size() - 1);
  EXPECT_EQ(read_file(fetch(server)), content());
  EXPECT_EQ(server.http.count("GET", "m-Q8_0.gguf"), 2);
  // Also where no snapshot names it.
  fs::resize_file(blob(), content().size() - 1);
  fs::remove_all(repository() / "snapshots");
  EXPECT_EQ(read_file(fetch(server)), content());
}

// A download must not have its name before its bytes are on the disk: a power cut would leave a blob of zeros.
TEST_F(HubFetch, ADownloadIsFlushedBeforeItHasItsName) {
  const HubServer server(one_file());
  take_named_files();
  fetch(server);
  std::vector<bool> flushed;
  for (const NamedFile& file : take_named_files())
    if (file.name == blob().string()) flushed.push_back(file.flushed);
  EXPECT_THAT(flushed, ElementsAre(true));
}

TEST(HubRedirect, LeadsFromHttpToHttpsAndNeverBack) {
  const auto refusal = [](const std::string& from, const std::string& location) {
    return error_message(ErrorKind::kFile, [&] { hub::redirect_target(from, location); });
  };
  EXPECT_EQ(hub::redirect_target("https://hub.example/a/b", "https://store.example/c?d=e"),
            "https://store.example/c?d=e");
  EXPECT_EQ(hub::redirect_target("https://hub.example/a/b", "/c"), "https://hub.example/c");
  EXPECT_EQ(hub::redirect_target("http://hub.example/a", "https://hub.example/a"), "https://hub.example/a");
  EXPECT_EQ(hub::redirect_target("http://hub.example/a", "http://store.example/a"), "http://store.example/a");
  EXPECT_THAT(refusal("https://hub.example/a", "http://hub.example/a"),
              HasSubstr("from https to http is not followed"));
  EXPECT_THAT(refusal("https://hub.example/a", "file:///etc/passwd"), HasSubstr("from https to file is not followed"));
  EXPECT_THAT(refusal("https://hub.example/a", ""), HasSubstr("without an address"));
}

TEST_F(HubFetch, HashesThatDifferBeforeAByteArrives) {
  const HubServer server(one_file(), [](const Request& r, Connection& c) {
    if (r.method != "HEAD") return false;
    c.send_head(200, {{"X-Linked-Etag", std::string(64, 'a')}, {"X-Linked-Size", std::to_string(content().size())}});
    return true;
  });
  EXPECT_THAT(refusal(server), AllOf(HasSubstr("listed with the hash"), HasSubstr(std::string(64, 'a'))));
  EXPECT_EQ(server.http.count("GET", "m-Q8_0.gguf"), 0);
}

TEST_F(HubFetch, AFileWithoutAHashIsRefused) {
  const HubServer::Fault tag_of_another_kind = [](const Request& r, Connection& c) {
    if (r.method != "HEAD") return false;
    c.send_head(200, {{"ETag", "\"5f3c-1\""}, {"Content-Length", "3000017"}});
    return true;
  };
  EXPECT_EQ(read_file(fetch(HubServer(one_file(), tag_of_another_kind))), content()) << "the listing has one";
  fs::remove_all(repository());
  HubServer server(one_file(), tag_of_another_kind);
  server.listing = R"({"sha": ")" + kCommit + R"(", "siblings": [{"rfilename": "m-Q8_0.gguf"}]})";
  EXPECT_THAT(refusal(server), HasSubstr("tells no hash"));
}

// GET of the file answered with these headers and bytes.
HubServer::Fault answers_with(int status, const Headers& headers, std::string bytes) {
  return [=](const Request& r, Connection& c) {
    if (!gets_file(r)) return false;
    c.send_head(status, headers);
    c.send(bytes);
    return true;
  };
}

TEST_F(HubFetch, LengthsThatLie) {
  const std::string longer = content() + "more", size = std::to_string(content().size());
  EXPECT_THAT(refusal(HubServer(one_file(), answers_with(200, {{"Content-Length", "3000021"}}, longer))),
              HasSubstr("expected 3000017 bytes, the answer announces 3000021"));
  EXPECT_THAT(refusal(HubServer(one_file(), answers_with(200, {{"Content-Length", "12"}}, "GGUF"))),
              HasSubstr("announces 12"));
  EXPECT_THAT(refusal(HubServer(one_file(), answers_with(200, {}, longer))),
              HasSubstr("more than the 3000017 bytes that were announced"));
  EXPECT_FALSE(fs::exists(repository() / "snapshots"));
  fs::remove_all(repository());
  EXPECT_THAT(refusal(HubServer(one_file(), answers_with(200, {}, content().substr(0, 5)))),
              HasSubstr("ended after 5 of 3000017 bytes"));
  // It goes on at byte 5 now.
  EXPECT_THAT(refusal(HubServer(one_file(), answers_with(206, {{"Content-Range", "bytes 0-3000016/" + size}}, "GGUF"))),
              HasSubstr("expected Content-Range: bytes 5-3000016/3000017"));
  EXPECT_THAT(refusal(HubServer(one_file(), answers_with(206, {}, "GGUF"))), HasSubstr("Content-Range"));
  EXPECT_THAT(refusal(HubServer(one_file(), answers_with(416, {{"Content-Length", "0"}}, ""))),
              HasSubstr("does not go on"));
}

// Each answer gives one byte more and ends: that is progress, which is never given up. The server ends it.
TEST_F(HubFetch, AServerOfATestIsNotAskedForEver) {
  const HubServer server(one_file(), [&](const Request& r, Connection& c) {
    if (!gets_file(r)) return false;
    unsigned long begin = 0;
    std::sscanf(r.header("range").c_str(), "bytes=%lu-", &begin);
    const std::string size = std::to_string(content().size()), end = std::to_string(content().size() - 1);
    c.send_head(begin == 0 ? 200 : 206, {{"Content-Range", fmt::format("bytes {}-{}/{}", begin, end, size)}});
    c.send(content().substr(begin, 1));
    return true;
  });
  settings.retry_seconds = 0;
  EXPECT_THAT(refusal(server), HasSubstr("a test asks less often"));
}

TEST_F(HubFetch, AListingThatLiesAboutSizes) {
  HubServer server(one_file());
  server.listing = server.true_listing();
  for (std::size_t at; (at = server.listing.find("3000017")) != std::string::npos;)
    server.listing.replace(at, 7, "3000018");
  EXPECT_THAT(refusal(server), HasSubstr("listed with 3000018 bytes, announced with 3000017"));
}

TEST_F(HubFetch, ADiskThatIsTooFullIsNoticedBefore) {
  HubServer server(one_file());
  server.listing = server.true_listing();
  for (std::size_t at; (at = server.listing.find("3000017")) != std::string::npos;)
    server.listing.replace(at, 7, "1152921504606846976");
  EXPECT_THAT(refusal(server), AllOf(HasSubstr("the disk is too full"), HasSubstr("1152921504606846976 bytes more"),
                                     HasSubstr("are free")));
  EXPECT_EQ(server.http.count("HEAD", ".gguf"), 0);
}

TEST_F(HubFetch, PathsThatLeaveTheCacheAreRefused) {
  for (const char* path : {"../../../escaped-Q8_0.gguf", "/tmp/escaped-Q8_0.gguf", "a/../../escaped-Q8_0.gguf"}) {
    HubServer server(one_file());
    server.listing = R"({"sha": ")" + kCommit + R"(", "siblings": [{"rfilename": ")" + path + R"("}]})";
    EXPECT_THAT(refusal(server), HasSubstr("a path inside the repository")) << path;
    EXPECT_FALSE(fs::exists(repository()));
  }
}

TEST_F(HubFetch, OfflineTakesWhatIsCachedAndAsksNobody) {
  const HubServer server(one_file());
  settings.offline = true;
  EXPECT_THAT(refusal(server), AllOf(HasSubstr("HF_HUB_OFFLINE"), HasSubstr("nothing was fetched")));
  settings.offline = false;
  const fs::path path = fetch(server);
  const std::size_t asked = server.http.requests().size();
  settings.offline = true;
  EXPECT_EQ(fetch(server), path);
  EXPECT_EQ(fetch(server, "acme/tiny:Q8_0"), path);
  EXPECT_THAT(refusal(server, "acme/tiny:Q4_0"), HasSubstr("no GGUF file is called Q4_0"));
  EXPECT_EQ(server.http.requests().size(), asked);
  fs::remove(blob());
  EXPECT_THAT(refusal(server), HasSubstr("HF_HUB_OFFLINE")) << "a link without its blob";
}

TEST_F(HubFetch, AnEndpointThatCannotBeReachedLeavesWhatIsCached) {
  fs::path path;
  {
    const HubServer server(one_file());
    path = fetch(server);
  }
  EXPECT_EQ(fetch_at(), path);
  EXPECT_THAT(notes, AllOf(HasSubstr("cannot be reached"), HasSubstr("taking the copy")));
  EXPECT_THROW(fetch_at("acme/other"), hub::Unreachable);
}

TEST_F(HubFetch, AnEndpointThatStaysBusyLeavesWhatIsCached) {
  std::atomic<bool> busy = false;
  const HubServer server(one_file(), [&](const Request&, Connection& c) {
    if (busy) c.answer(503, {}, "");
    return busy.load();
  });
  const fs::path path = fetch(server);
  busy = true;
  EXPECT_EQ(fetch(server), path);
  EXPECT_THAT(notes, AllOf(HasSubstr("answers 503"), HasSubstr("taking the copy")));
}

TEST_F(HubFetch, ABuildWithoutLibcurlSaysSo) {
  const auto* const row = Backend<hub::Downloader>::find();
  const HubServer server(one_file());
  const fs::path path = fetch(server);
  Backend<hub::Downloader>::add(nullptr);
  EXPECT_EQ(fetch(server), path) << "what is cached needs no download";
  EXPECT_THAT(refusal(server, "acme/other"), AllOf(HasSubstr("cannot download"), HasSubstr("libcurl")));
  Backend<hub::Downloader>::add(row);
}

TEST_F(HubFetch, TwoAtOnceFetchOnce) {
  std::atomic<int> gets = 0;
  const HubServer server(one_file(), [&](const Request& r, Connection& c) {
    if (!gets_file(r)) return false;
    ++gets;
    c.send_head(200, {{"Content-Length", std::to_string(content().size())}});
    c.send(std::string_view(content()).substr(0, 1'000'000));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    c.send(std::string_view(content()).substr(1'000'000));
    return true;
  });
  settings.endpoint = server.http.url();
  settings.cache = folder.path() / "hub";
  std::mutex mutex;
  std::string waited;
  const auto fetch_one = [&] {
    const hub::FetchEvents events{.on_note = [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      waited += line;
    }};
    EXPECT_EQ(read_file(hub::fetch_model("acme/tiny", settings, events)), content());
  };
  std::future<void> other = std::async(std::launch::async, fetch_one);
  fetch_one();
  other.get();
  EXPECT_EQ(gets, 1);
  EXPECT_THAT(waited, HasSubstr("waiting for another process"));
}

TEST_F(HubFetch, ALockFileThatItsOwnerRemovesIsMadeAgain) {
  const HubServer server(one_file());
  const fs::path lock = folder.path() / "hub/.locks/models--acme--tiny" / (sha256_of(content()) + ".lock");
  fs::create_directories(lock.parent_path());
  const int fd = ::open(lock.c_str(), O_RDWR | O_CREAT, 0644);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  std::thread owner([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    fs::remove(lock);
    ::close(fd);
  });
  EXPECT_EQ(read_file(fetch(server)), content());
  owner.join();
  EXPECT_TRUE(fs::exists(lock));
}

}  // namespace
}  // namespace mneme::hub_test
