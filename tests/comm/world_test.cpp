#include "comm/world/world.h"

#include <gtest/gtest.h>

#include <atomic>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "base/errors.h"
#include "tests/comm/free_fixed_port.h"
#include "tests/comm/rank_threads.h"

namespace longshore {
namespace {

const OpLabel kLabel{"gradients", UnitId(3)};

std::string text_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return thrown.what();
  }
  return "";
}

double sum_over(Communicator& group, double value) {
  group.all_reduce(std::span(&value, 1), kLabel).wait();
  return value;
}

void expect_refused(const RankInfo& info, const std::string& words) {
  try {
    World::connect(info, quick_options());
    ADD_FAILURE() << words;
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

// Goal: groups for shards and replicas work side by side; one name may mean several groups.
TEST(World, GroupsInTwoDirections) {
  run_ranks(4, [](World& world) {
    const int32_t rank = world.ranks().rank;
    const int32_t first = rank / 2 * 2;
    const auto shards = world.group("shards", {first, first + 1});
    const auto replicas = world.group("replicas", {rank % 2, rank % 2 + 2});
    EXPECT_EQ(shards->index(), rank % 2);
    EXPECT_EQ(replicas->index(), rank / 2);
    std::vector<double> a = {1.0 * rank};
    std::vector<double> b = {1.0 * rank};
    Completion of_shards = shards->all_reduce(a, kLabel);
    Completion of_replicas = replicas->all_reduce(b, kLabel);
    of_replicas.wait();
    of_shards.wait();
    EXPECT_EQ(a[0], first * 2 + 1);
    EXPECT_EQ(b[0], rank % 2 * 2 + 2);
    EXPECT_EQ(sum_over(world.all(), 1.0), 4);
  });
}

// Goal: votes and totals are exchanged from host memory also on GPUs, not through NCCL.
TEST(World, ExchangesTheHostsMemoryWhateverTheDevice) {
  WorldOptions options = quick_options();
  options.device = DeviceKind::kCuda;
  run_ranks(
      2,
      [](World& world) {
        EXPECT_EQ(sum_over(world.all(), 1.0), 2);
        const auto group = world.host_group("node", {0, 1});
        std::vector<std::byte> places(2);
        places[static_cast<size_t>(group->index())] = std::byte{7};
        group->all_gather({std::span(places)}, kLabel).wait();
        EXPECT_EQ(places, std::vector<std::byte>(2, std::byte{7}));
      },
      options);
}

// Goal: a group of one rank needs no communication; other ranks may make groups meanwhile.
TEST(World, GroupsOfOne) {
  run_ranks(3, [](World& world) {
    const int32_t rank = world.ranks().rank;
    const auto group =
        rank == 2 ? world.group("g", {2}) : world.group("g", std::vector<int32_t>{0, 1});
    EXPECT_EQ(sum_over(*group, 1.0), rank == 2 ? 1 : 2);
  });
}

// Goal: exchanged texts arrive in rank order, also in repeated exchanges.
TEST(World, ExchangesTexts) {
  run_ranks(3, [](World& world) {
    for (int i = 0; i < 3; ++i) {
      std::vector<std::string> expected;
      for (int rank = 0; rank < 3; ++rank) expected.push_back(std::to_string(rank * 10 + i));
      const std::string mine = std::to_string(world.ranks().rank * 10 + i);
      EXPECT_EQ(world.exchange("layout", mine), expected);
    }
    world.agree("the run file", "steps = 3\n");
  });
}

// Goal: all ranks get the same error: which rank differs first, in which line, and how.
TEST(World, AgreeNamesTheFirstDifference) {
  const auto errors = run_ranks_catching(3, [](World& world) {
    const bool other = world.ranks().rank >= 1;
    world.agree("the run file", other ? "seed = 1\nlr = 2\n" : "seed = 1\nlr = 1\n");
  });
  for (const auto& error : errors) {
    EXPECT_THROW(std::rethrow_exception(error), ConfigError);
    EXPECT_EQ(text_of(error),
              "rank 1 differs from rank 0 in the run file: line 2 is \"lr = 2\" there and \"lr = "
              "1\" on rank 0; start all ranks with the same files and arguments");
  }
}

// Goal: ranks in different operations fail at once, and the error names both operations.
TEST(World, NamesARankThatDisagrees) {
  const auto errors = run_ranks_catching(3, [](World& world) {
    std::vector<float> values(12);
    std::vector<std::byte> scratch(1000);
    if (world.ranks().rank == 1) {
      world.all().reduce_scatter({values}, DType::kF32, scratch, kLabel).wait();
    } else {
      world.all().all_gather({std::as_writable_bytes(std::span(values))}, kLabel).wait();
    }
  });
  for (const auto& error : errors) {
    const std::string text = text_of(error);
    EXPECT_TRUE(text.find("rank 1 (") == 0) << text;
    EXPECT_NE(text.find("disagrees: it is in reduce_scatter #2 of gradients, unit 3 (48 bytes, "
                        "F32) in group world where rank 0 is in all_gather #2 of gradients"),
              std::string::npos)
        << text;
  }
}

// Goal: the failure of one rank reaches the others with its text.
TEST(World, ReportsTheFailureOfARank) {
  const auto errors = run_ranks_catching(3, [](World& world) {
    if (world.ranks().rank == 2) {
      world.report_failure("train.jsonl is damaged");
      throw DataError("train.jsonl is damaged");
    }
    double value = 1;
    world.all().all_reduce(std::span(&value, 1), {"norm", {}}).wait();
  });
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THROW(std::rethrow_exception(errors[rank]), CommError);
    const std::string text = text_of(errors[rank]);
    EXPECT_TRUE(text.find("rank 2 (") == 0) << text;
    EXPECT_NE(text.find("failed: train.jsonl is damaged; rank " + std::to_string(rank)),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("for scalars #2 of norm (8 bytes) in group world"), std::string::npos)
        << text;
  }
  EXPECT_EQ(text_of(errors[2]), "train.jsonl is damaged");
}

// Goal: text from another process is printed as one line, whatever it contains.
TEST(World, TheWordsOfAnotherRankAreOneLine) {
  const auto errors = run_ranks_catching(2, [](World& world) {
    if (world.ranks().rank == 1) {
      world.report_failure("no space\nERROR: a false line\x1b[31m\r");
      throw DataError("no space");
    }
    double value = 1;
    world.all().all_reduce(std::span(&value, 1), {"norm", {}}).wait();
  });
  const std::string text = text_of(errors[0]);
  EXPECT_NE(text.find("ERROR: a false line"), std::string::npos) << text;
  for (const char* raw : {"\n", "\r", "\x1b"}) {
    EXPECT_EQ(text.find(raw), std::string::npos) << text;
  }
}

// Goal: a rank that does not send its text is named together with the kind of text.
TEST(World, NamesATextThatDoesNotCome) {
  WorldOptions options = quick_options();
  options.timeout = std::chrono::seconds(12);
  const auto errors = run_ranks_catching(
      2,
      [](World& world) {
        if (world.ranks().rank == 0) world.agree("the run file", "lr = 1\n");
        for (;;) {
          world.check();
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
      },
      options);
  for (const auto& error : errors) {
    const std::string text = text_of(error);
    EXPECT_EQ(text.find("rank 1 did not give the run file within dist.timeout, 12 s"), 0u) << text;
  }
}

// Goal: a rank that does not join an operation is named after the time-out, with its last one.
TEST(World, NamesARankThatDoesNotCome) {
  WorldOptions options = quick_options();
  options.timeout = std::chrono::seconds(12);
  const auto errors = run_ranks_catching(
      3,
      [](World& world) {
        sum_over(world.all(), 1.0);
        if (world.ranks().rank == 1) {
          // This rank is alive but never joins the operation.
          for (;;) {
            world.check();
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          }
        }
        world.all().barrier({"checkpoint", {}}).wait();
      },
      options);
  for (const auto& error : errors) {
    const std::string text = text_of(error);
    EXPECT_TRUE(text.find("rank 1 (") == 0) << text;
    const std::string said = "has not reached barrier #3 of checkpoint in group world within ";
    const size_t at = text.find(said);
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_GE(std::stod(text.substr(at + said.size())), 12.0) << text;
    EXPECT_NE(text.find("its last operation there, finished, is scalars #2 of gradients"),
              std::string::npos)
        << text;
  }
}

// Goal: a rank that itself waits in another group is not blamed; the rank that it waits for is.
TEST(World, FollowsWhoWaitsForWhom) {
  WorldOptions options = quick_options();
  options.timeout = std::chrono::seconds(12);
  const auto errors = run_ranks_catching(
      3,
      [](World& world) {
        const int32_t rank = world.ranks().rank;
        const auto a = rank < 2 ? world.group("a", std::vector<int32_t>{0, 1}) : nullptr;
        if (rank == 2) world.group("a", {2});
        const auto b = rank > 0 ? world.group("b", std::vector<int32_t>{1, 2}) : nullptr;
        if (rank == 0) world.group("b", {0});
        if (rank == 1) b->barrier(kLabel).wait();  // waits for rank 2
        if (rank == 0) a->barrier(kLabel).wait();  // waits for rank 1
        for (;;) {
          world.check();
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
      },
      options);
  for (const auto& error : errors) {
    EXPECT_TRUE(text_of(error).find("rank 2 (") == 0) << text_of(error);
  }
}

// Goal: ranks that never connect are named.
TEST(World, NamesRanksThatDoNotCome) {
  const StoreServer server({});
  WorldOptions options = quick_options();
  options.timeout = std::chrono::milliseconds(300);
  try {
    World::connect(rank_of(0, 4, server.port()), options);
    FAIL();
  } catch (const CommError& error) {
    EXPECT_EQ(std::string(error.what()).find("ranks 1, 2, 3 of 4 did not connect to the store"), 0u)
        << error.what();
  }
}

// Goal: a store serves one start: a second process with the number of a known rank is refused with
// that rank's identity, during the run and after it.
TEST(World, ARankIsClaimedOnce) {
  const StoreServer server({});
  std::atomic<bool> refused = false;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto world = World::connect(rank_of(rank, 2, server.port()), quick_options());
      if (rank == 0) {
        expect_refused(rank_of(1, 2, server.port()), "rank 1 of the run at 127.0.0.1:");
        refused = true;
      }
      // The second process does not disturb the ranks of the run.
      EXPECT_EQ(sum_over(world->all(), 1.0), 2);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(refused);
  expect_refused(rank_of(0, 2, server.port()), "is taken by host ");
}

// Goal: ranks with different numbers of ranks all fail at once and print both numbers.
TEST(World, NamesSizesThatDiffer) {
  const StoreServer server({});
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        World::connect(rank_of(rank, 2 + rank, server.port()), quick_options());
      } catch (const ConfigError& error) {
        texts[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(texts[0], texts[1]);
  for (const char* words : {"as one of 2 ranks", "as one of 3 ranks", "WORLD_SIZE"}) {
    EXPECT_NE(texts[0].find(words), std::string::npos) << texts[0];
  }
}

// Goal: all ranks name local ranks and sizes of a node that cannot be right.
TEST(World, NamesPlacesOnANodeThatDiffer) {
  for (const bool sizes : {true, false}) {
    const StoreServer server({});
    std::vector<std::string> texts(2);
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        RankInfo info = rank_of(rank, 2, server.port());
        if (sizes) info.local_size = 2 + rank;
        if (!sizes) info.local_rank = 0;
        try {
          World::connect(info, quick_options());
        } catch (const ConfigError& error) {
          texts[static_cast<size_t>(rank)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_EQ(texts[0].find("rank 1 (host "), 0u) << texts[0];
    const char* words = sizes ? "LOCAL_WORLD_SIZE" : "were both started as local rank 0";
    EXPECT_NE(texts[0].find(words), std::string::npos) << texts[0];
  }
}

// Goal: a rank without the run's secret is refused with that reason.
TEST(World, RefusesARankWithoutTheSecret) {
  const StoreServer server({.secret = "a secret of the run"});
  for (const std::string secret : {"", "another secret"}) {
    RankInfo info = rank_of(1, 2, server.port());
    info.secret = secret;
    try {
      World::connect(info, quick_options());
      FAIL();
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("does not belong to this run"), std::string::npos)
          << error.what();
    }
  }
  EXPECT_EQ(server.most_used().keys, 0u);
}

// Goal: torchrun's agent store holds only the address of the run's store; what a stranger wrote
// there before does not mislead the ranks.
TEST(World, TorchrunsAgentHasTheAddressOnly) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const std::string key = "longshore/job/1/store";
  const StoreServer stranger({});
  c10d::Store& written = *agent;
  written.set(key, "127.0.0.1:" + std::to_string(stranger.port()));
  const int64_t before = agent->getNumKeys();
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      RankInfo info = rank_of(rank, 3, agent->getPort());
      info.agent_store = false;
      info.torch_agent = true;
      info.run_id = "job";
      info.restart = 1;
      info.secret = "the secret of this run";
      // The other ranks come first and find the stranger's address.
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const auto world = World::connect(info, quick_options());
      EXPECT_NE(world->ranks().store_port, agent->getPort());
      EXPECT_EQ(sum_over(world->all(), 1.0), 3);
      world->agree("the run file", "lr = 1\n");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(agent->getNumKeys(), before);
  EXPECT_EQ(agent->get_to_str(key).find("127.0.0.1:"), 0u);
  EXPECT_EQ(stranger.most_used().clients, 0u);
}

// Goal: without a launcher's store rank 0 serves it; the number of nodes is counted.
TEST(World, RankZeroServesTheStore) {
  const uint16_t port = free_fixed_port();
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      RankInfo info = rank_of(rank, 3, port);
      info.agent_store = false;
      info.local_size = info.local_rank = info.nodes = 0;
      const auto world = World::connect(info, quick_options());
      EXPECT_EQ(world->ranks().local_rank, rank);
      EXPECT_EQ(world->ranks().local_size, 3);
      EXPECT_EQ(world->ranks().nodes, 1);
      EXPECT_EQ(sum_over(world->all(), 1.0), 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace longshore
