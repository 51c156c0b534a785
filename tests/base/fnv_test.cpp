#include "essh/base/fnv.h"

#include <gtest/gtest.h>

namespace essh {
namespace {

// Published values. Initial weights and checkpoints depend on them.
TEST(Fnv, IsTheKnownFunction) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(fnv1a("bar", fnv1a("foo")), fnv1a("foobar"));
  EXPECT_EQ(fnv1a(std::as_bytes(std::span("foobar", 6))), fnv1a("foobar"));
}

}  // namespace
}  // namespace essh
