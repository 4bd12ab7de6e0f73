#include "src/formats/model_name.h"

#include <gtest/gtest.h>

namespace mneme {
namespace {

TEST(ModelName, IsTheFilesTheFoldersOrTheRepositorys) {
  EXPECT_EQ(model_name("models/qwen3-8b-q8_0.gguf"), "qwen3-8b-q8_0");
  EXPECT_EQ(model_name("models/Qwen3-8B"), "Qwen3-8B");
  EXPECT_EQ(model_name("models/Qwen3-8B/"), "Qwen3-8B");
  EXPECT_EQ(model_name("hub/models--Qwen--Qwen3-8B/snapshots/0123abc"), "Qwen3-8B");
  EXPECT_EQ(model_name("hub/models--Qwen--Qwen3-8B/snapshots/0123abc/"), "Qwen3-8B");
  EXPECT_EQ(model_name("hub/models--a--b/snapshots/0123abc/b-Q8_0.gguf"), "b-Q8_0");
  EXPECT_EQ(model_name("snapshots/0123abc"), "0123abc");
}

}  // namespace
}  // namespace mneme
