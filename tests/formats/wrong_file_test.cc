// Files that are no model, named for what they are: the table of wrong uses.
#include <gtest/gtest.h>

#include "src/formats/checkpoint.h"
#include "tests/formats/gguf/gguf_builder.h"
#include "tests/formats/safetensors/hf_builder.h"

namespace mneme::test {
namespace {

const std::string kPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n";

void expect_refusal(const std::filesystem::path& path, ErrorKind kind, std::initializer_list<std::string> words) {
  expect_error(kind, words, [&] { Checkpoint::open(path); });
}

TEST(WrongFile, LoraAdapterInGguf) {
  TempFolder folder;
  GgufBuilder b;
  b.set("general.architecture", "llama");
  b.set("general.type", "adapter");
  b.set("adapter.type", "lora");
  b.add("blk.0.attn_q.weight.lora_a", {64, 8}, 0);
  expect_refusal(folder.write("lora.gguf", b.build()), ErrorKind::kUnsupported,
                 {"lora.gguf", "LoRA adapter", "merge it"});
}

TEST(WrongFile, LoraAdapterInAFolder) {
  TempFolder folder;
  folder.write("adapter_config.json", "{}");
  folder.write("adapter_model.safetensors", "");
  expect_refusal(folder.path(), ErrorKind::kUnsupported, {folder.path().string(), "LoRA adapter", "merge it"});
}

TEST(WrongFile, ProjectorOfImages) {
  TempFolder folder;
  GgufBuilder b;
  b.set("general.architecture", "clip");
  b.set("general.type", "mmproj");
  b.add("v.patch_embd.weight", {64, 8}, 0);
  expect_refusal(folder.write("mmproj-F16.gguf", b.build()), ErrorKind::kUnsupported,
                 {"mmproj-F16.gguf", "projector of images", "text model"});
}

TEST(WrongFile, ImportanceMatrix) {
  TempFolder folder;
  GgufBuilder b;
  b.set("general.type", "imatrix");
  b.add("blk.0.attn_q.weight.in_sum2", {64}, 0);
  expect_refusal(folder.write("imatrix.gguf", b.build()), ErrorKind::kUnsupported, {"imatrix.gguf", "importance"});
}

TEST(WrongFile, EmbeddingModels) {
  TempFolder folder;
  GgufBuilder b = GgufBuilder::tiny();
  b.set("general.architecture", "bert");
  expect_refusal(folder.write("bge.gguf", b.build()), ErrorKind::kUnsupported,
                 {"bge.gguf", "'bert'", "embedding model", "not served"});
  HfBuilder hf = HfBuilder::tiny();
  hf.config["model_type"] = "xlm-roberta";
  hf.write(folder);
  expect_refusal(folder.path(), ErrorKind::kUnsupported, {"config.json", "'xlm-roberta'", "embedding model"});
}

TEST(WrongFile, ArchitecturesThatNoBuildRuns) {
  for (const char* name : {"gemma2", "nemotron_h", "deepseek2"}) {
    TempFolder folder;
    GgufBuilder b = GgufBuilder::tiny();
    b.set("general.architecture", name);
    expect_refusal(folder.write("a.gguf", b.build()), ErrorKind::kUnsupported,
                   {"'" + std::string(name) + "' is not supported", "llama", "issue"});
    HfBuilder hf = HfBuilder::tiny();
    hf.config["model_type"] = name;
    hf.write(folder);
    expect_refusal(folder.path(), ErrorKind::kUnsupported,
                   {"'" + std::string(name) + "' is not supported", "qwen3_moe", "issue"});
  }
}

TEST(WrongFile, FolderOfOneGgufNamesIt) {
  TempFolder folder;
  const auto path = folder.write("needle.gguf", "GGUF");
  folder.write("mmproj-needle.gguf", "GGUF");
  expect_refusal(folder.path(), ErrorKind::kFile, {"no config.json", "one GGUF file", path.string()});
  folder.write("other-00002-of-00002.gguf", "GGUF");
  expect_refusal(folder.path(), ErrorKind::kFile, {"one GGUF file", path.string()});
  folder.write("best-of-2024.gguf", "GGUF");  // not a part's name
  expect_refusal(folder.path(), ErrorKind::kFile, {"2 GGUF files", "best-of-2024.gguf"});
  std::filesystem::remove(folder.path() / "best-of-2024.gguf");
  folder.write("other-00001-of-00002.gguf", "GGUF");
  expect_refusal(folder.path(), ErrorKind::kFile, {"2 GGUF files", path.string()});
}

TEST(WrongFile, GitLfsPointers) {
  TempFolder gguf;
  expect_refusal(gguf.write("model.gguf", kPointer), ErrorKind::kFile,
                 {"model.gguf", "Git LFS pointer", "git lfs pull"});
  for (const char* file : {"model.safetensors", "tokenizer.json", "config.json"}) {
    TempFolder folder;
    HfBuilder b = HfBuilder::tiny();
    b.extra[file] = kPointer;
    b.write(folder);
    expect_refusal(folder.path(), ErrorKind::kFile, {file, "Git LFS pointer", "git lfs pull"});
  }
}

TEST(WrongFile, NameOnHuggingFaceIsFetched) {
  expect_refusal("Qwen/Qwen3-8B", ErrorKind::kFile, {"Qwen/Qwen3-8B", "no such file", "-hf Qwen/Qwen3-8B"});
  expect_error(ErrorKind::kFile, {"-hf Qwen/Qwen3-8B"}, [] { Checkpoint::open_tokenizer("Qwen/Qwen3-8B"); });
  for (const char* path : {"models/none.gguf", "./a/b", "/a/b"})
    expect_error(ErrorKind::kFile, {path, "cannot be opened"}, [&] { Checkpoint::open(path); });
}

}  // namespace
}  // namespace mneme::test
