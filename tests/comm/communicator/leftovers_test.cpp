// What communicators leave in the file system: nothing, whether they are made or not.
#include <filesystem>

#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {
namespace {

/// Runs body(communicator) on 4 ranks that meet in a directory that does not exist; the communicator
/// is empty where creation failed.
void check_leaves_nothing(How how, const std::string& what, const Config& config,
                          const std::function<void(Result<Communicator>&)>& body) {
  INFO(what << ", " << how_name(how));
  const TempDirectory directory;
  require_all_ok(run_ranks(how, 4, [&](int rank) {
    auto made = Communicator::create(world_config(directory.path() + "/made/job", rank, 4, config));
    body(made);
  }));
  CHECK(std::filesystem::is_empty(directory.path()));
}

}  // namespace

TEST_CASE("communicators leave no rendezvous directory behind, nor do failed ones") {
  for (const How how : kHows) {
    check_leaves_nothing(how, "create", {}, [](Result<Communicator>& comm) {
      expect_ok(comm.status(), "create");
      expect_ok(comm->barrier(), "barrier");
    });
    check_leaves_nothing(how, "split and duplicate", {}, [](Result<Communicator>& comm) {
      for (int turn = 0; turn < 5; ++turn) {
        expect_ok(comm->split(comm->rank() % 2, 0).status(), "split");
        expect_ok(comm->duplicate().status(), "duplicate");
      }
    });
    check_leaves_nothing(how, "a refused split", {}, [](Result<Communicator>& comm) {
      const int rank = comm->rank();
      expect_eq(comm->split(rank == 3 ? -7 : rank % 2, 0).ok(), rank != 3, "split");
    });
    check_leaves_nothing(how, "an abort inside a duplicate", {}, [](Result<Communicator>& comm) {
      if (comm->rank() == 3) return comm->abort("enough");
      expect_eq(comm->duplicate().ok(), false, "duplicate");
    });
    Config unknown;
    unknown.links = "/no/such/profile";
    check_leaves_nothing(how, "a failed create", unknown,
                         [](Result<Communicator>& comm) { expect_eq(comm.ok(), false, "create"); });
  }
}

}  // namespace rondo::testing
