#include "essh/serve/state_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "essh/base/json.h"
#include "tests/serve/live_server.h"

namespace essh::serve {
namespace {
namespace fs = std::filesystem;

struct StateStoreTest : public ::testing::Test {
  fs::path folder = fs::path(::testing::TempDir()) / fmt::format("essh-states-{}", ::getpid());
  StateStoreOptions options{.folder = folder, .quota = 1 << 20, .model = "m", .precision = "float32"};
  SavedState state{
      .tier = {"T1", 0.2, {2, 3}},
      .state = {.capacity = {2, 3}, .position = 7, .parts = {{std::byte{1}, std::byte{2}}, {std::byte{3}}}},
      .pending = {5},
      .sampler = {.seed = 9, .position = 4, .recent = {1, 2, 5}}};

  ~StateStoreTest() override { fs::remove_all(folder); }

  static StateStore::Receipt save(StateStore& store, const SavedState& saved, const std::string& owner) {
    std::promise<StateStore::Receipt> done;
    store.save(saved, owner, [&](StateStore::Receipt receipt) { done.set_value(std::move(receipt)); });
    return done.get_future().get();
  }
  static int status_of(const std::function<void()>& act) {
    try {
      act();
      return 200;
    } catch (const HttpError& error) {
      return error.status();
    }
  }
};

TEST_F(StateStoreTest, ComesBackAsItWas) {
  std::string id;
  {
    StateStore store(options);
    const auto receipt = save(store, state, "me");
    EXPECT_EQ(receipt.error, "");
    id = receipt.id;
  }
  const StateStore store(options);  // after a restart
  const auto back = store.load(id, "me");
  EXPECT_EQ(back.tier.name, "T1");
  EXPECT_EQ(back.tier.capacity, state.tier.capacity);
  EXPECT_EQ(back.state.position, 7);
  EXPECT_EQ(back.state.parts, state.state.parts);
  EXPECT_EQ(back.pending, state.pending);
  EXPECT_EQ(back.sampler.seed, 9u);
  EXPECT_EQ(back.sampler.position, 4u);
  EXPECT_EQ(back.sampler.recent, state.sampler.recent);
}

// Fault S15: an id is never used as a path.
TEST_F(StateStoreTest, S15OnlyItsOwnIdsAreFiles) {
  StateStore store(options);
  const auto id = save(store, state, "").id;
  fs::create_directory(folder / "sub");
  fs::copy_file(folder / (id + ".state"), folder / "sub" / (id + ".state"));
  fs::copy_file(folder / (id + ".state"), folder / "other.state");
  auto upper = id;
  for (auto& c : upper) c = c >= 'a' && c <= 'f' ? static_cast<char>(c - 'a' + 'A') : c;
  if (upper == id) upper[0] = 'A';
  for (const auto& bad : {std::string(), std::string("."), std::string("other"), "../" + id, "sub/" + id, "/" + id,
                          id + "/", id + ".state", id + std::string(1, '\0'), id.substr(1), id + "0", upper,
                          std::string(32, '.'), std::string(31, '0') + "/", std::string("../../../../etc/passwd")}) {
    EXPECT_EQ(status_of([&] { store.load(bad, ""); }), 404) << bad;
    EXPECT_EQ(status_of([&] { store.remove(bad, ""); }), 404) << bad;
  }
  EXPECT_EQ(status_of([&] { store.load(id, ""); }), 200);
}

TEST_F(StateStoreTest, BelongsToItsOwnerModelAndPrecision) {
  StateStore store(options);
  const auto id = save(store, state, "me").id;
  EXPECT_EQ(status_of([&] { store.load(id, "you"); }), 404);
  EXPECT_EQ(status_of([&] { store.remove(id, "you"); }), 404);
  auto other = options;
  other.model = "n";
  EXPECT_EQ(status_of([&] { StateStore(other).load(id, "me"); }), 409);
  other = options;
  other.precision = "bfloat16";
  EXPECT_EQ(status_of([&] { StateStore(other).load(id, "me"); }), 409);
  store.remove(id, "me");
  EXPECT_EQ(status_of([&] { store.load(id, "me"); }), 404);
}

TEST_F(StateStoreTest, DamageIsNoticedWhereverItIs) {
  StateStore store(options);
  const auto id = save(store, state, "").id;
  const auto path = folder / (id + ".state");
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  in.close();
  const auto write = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
  };
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 1);
    write(bytes);
    try {
      // A changed tier name, or a changed key that is not read, does not affect the result.
      const auto back = store.load(id, "");
      EXPECT_EQ(back.state.parts, state.state.parts) << i;
      EXPECT_EQ(back.pending, state.pending) << i;
      EXPECT_EQ(back.tier.capacity, state.tier.capacity) << i;
    } catch (const HttpError& error) {
      EXPECT_TRUE(error.status() == 409 || error.status() == 404) << i;
    }
  }
  for (std::size_t size = 0; size < whole.size(); size += 13) {
    write(whole.substr(0, size));
    EXPECT_EQ(status_of([&] { store.load(id, ""); }), 409) << size;
  }
}

TEST_F(StateStoreTest, TheQuotaHolds) {
  options.quota = 10;
  EXPECT_NE(save(*std::make_unique<StateStore>(options),
                 SavedState{.state = {.capacity = {}, .parts = {std::vector<std::byte>(11)}}}, "")
                .error,
            "");
  options.quota = 1500;
  StateStore store(options);
  std::vector<std::string> ids;
  while (!store.full()) ids.push_back(save(store, state, "").id);
  EXPECT_GE(ids.size(), 2u);
  EXPECT_TRUE(StateStore(options).full());
  store.remove(ids[0], "");
  EXPECT_FALSE(store.full());
}

// A text that is saved and resumed equals the uninterrupted text bit by bit: greedy and drawn, at several tiers, with
// the random numbers and recent tokens of the state.
TEST_F(StateStoreTest, TextsGoOnAsIfNeverInterrupted) {
  if (!can_serve()) GTEST_SKIP() << "built without Boost";
  options.model = served_family().hash();
  for (const bool stream : {false, true}) {
    StateStore store(options);
    LiveServer server({}, {.states = &store});
    const auto ask = [&](const std::string& fields) {
      Client client(server.port);
      client.send(post(
          "/v1/completions",
          fmt::format(R"({{"ignore_eos": true, "logprobs": 3, "return_tokens_as_token_ids": true, "stream": {}, {}}})",
                      stream, fields),
          kClose));
      return std::string(client.read_all());
    };
    // The tokens of a reply with their log-probabilities, and the id of its state.
    const auto read = [&](const std::string& reply) {
      std::pair<std::vector<std::string>, std::string> found;
      std::vector<std::string> texts;
      if (!stream) texts.push_back(reply.substr(reply.find("\r\n\r\n") + 4));
      for (auto at = reply.find("data: {"); stream && at != std::string::npos; at = reply.find("data: {", at + 1))
        texts.push_back(reply.substr(at + 6, reply.find("\n\n", at) - at - 6));
      for (const auto& text : texts) {
        const auto body = parse_json(text, "reply");
        if (!body.contains("choices")) ADD_FAILURE() << reply;
        if (body.contains("essh")) found.second = body["essh"].at("state").at("id").text();
        for (const auto& choice : body.at("choices")) {
          const auto& logs = choice.at("logprobs");
          for (std::size_t i = 0; i < logs["tokens"].size(); ++i)
            found.first.push_back(logs["tokens"][i].text() + " " + to_text(logs["token_logprobs"][i]));
        }
      }
      return found;
    };
    for (const std::string how :
         {R"("temperature": 0)", R"("temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.3, "seed": 4)",
          R"("temperature": 1, "model": "m@T1", "seed": 5)"}) {
      const auto unbroken = read(ask(how + R"(, "prompt": "Hello", "max_tokens": 24)")).first;
      ASSERT_EQ(unbroken.size(), 24u);
      auto part = read(ask(how + R"(, "prompt": "Hello", "max_tokens": 9, "save_state": true)"));
      auto joined = part.first;
      ASSERT_EQ(part.second.size(), 32u);
      // A request without a seed continues the random numbers of the state.
      const auto again = how.substr(0, how.find(", \"seed\""));
      for (const int most : {1, 6, 8}) {
        part = read(ask(again + fmt::format(R"(, "prompt": "", "max_tokens": {}, "save_state": true, "state": "{}")",
                                            most, part.second)));
        joined.insert(joined.end(), part.first.begin(), part.first.end());
      }
      EXPECT_EQ(joined, unbroken);
    }
    // With max_tokens 0 the state is that after the prompt.
    const auto begun = read(ask(R"("prompt": "Hello, ", "max_tokens": 0, "save_state": true)")).second;
    const auto rest =
        read(ask(fmt::format(R"("temperature": 0, "prompt": "world", "max_tokens": 5, "state": "{}")", begun))).first;
    EXPECT_EQ(rest.size(), 5u);
    const auto refused = [&](const std::string& fields, const char* status) {
      const auto reply = ask(fields);
      EXPECT_TRUE(reply.starts_with(fmt::format("HTTP/1.1 {} ", status))) << fields << reply;
    };
    refused(fmt::format(R"("prompt": "", "state": "{}")", begun), "400");
    refused(fmt::format(R"("prompt": "x", "model": "m@T1", "state": "{}")", begun), "409");
    refused(fmt::format(R"("prompt": "x", "echo": true, "state": "{}")", begun), "400");
    refused(R"("prompt": "x", "state": "../x")", "404");
    refused(R"("prompt": "x", "n": 2, "save_state": true)", "400");
    refused(R"("prompt": ["x", "y"], "save_state": true)", "400");
    Client client(server.port);
    client.send(fmt::format("DELETE /v1/states/{} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", begun, kClose));
    EXPECT_TRUE(client.read_all().starts_with("HTTP/1.1 200 OK"));
    refused(fmt::format(R"("prompt": "x", "state": "{}")", begun), "404");
    server.stop();
  }
}

TEST_F(StateStoreTest, StatesAreOffUnlessAllowed) {
  if (!can_serve()) GTEST_SKIP() << "built without Boost";
  LiveServer server;
  for (const std::string_view fields : {R"("save_state": true)", R"("state": "00000000000000000000000000000000")"}) {
    Client client(server.port);
    client.send(post("/v1/completions", fmt::format(R"({{"prompt": "x", {}}})", fields), kClose));
    const auto& reply = client.read_all();
    EXPECT_TRUE(reply.starts_with("HTTP/1.1 400 ")) << reply;
    EXPECT_NE(reply.find("states_not_allowed"), std::string::npos);
  }
}

}  // namespace
}  // namespace essh::serve
