// A libpmix.so.2 for pmix_test.cpp: a job of two ranks, of which this process is rank 1. At first its
// server does not know what rank 0 publishes, as Open MPI's may on a busy machine. The environment's
// RONDO_TEST_PMIX_UNKNOWN says how often it answers so.
#include <pmix.h>

#include <cstdlib>
#include <cstring>
#include <thread>

extern "C" {

pmix_status_t PMIx_Init(pmix_proc_t* self, pmix_info_t* /*info*/, size_t /*count*/) {
  std::strcpy(self->nspace, "job");
  self->rank = 1;
  return PMIX_SUCCESS;
}
pmix_status_t PMIx_Finalize(const pmix_info_t* /*info*/, size_t /*count*/) { return PMIX_SUCCESS; }
pmix_status_t PMIx_Put(pmix_scope_t /*scope*/, const char* /*key*/, pmix_value_t* /*value*/) {
  return PMIX_SUCCESS;
}
pmix_status_t PMIx_Commit() { return PMIX_SUCCESS; }
const char* PMIx_Error_string(pmix_status_t /*status*/) { return "NOT-FOUND"; }

pmix_status_t PMIx_Get(const pmix_proc_t* /*process*/, const char* key, const pmix_info_t* /*info*/,
                       size_t /*count*/, pmix_value_t** value) {
  *value = static_cast<pmix_value_t*>(std::calloc(1, sizeof(pmix_value_t)));
  (*value)->type = PMIX_UINT32;
  (*value)->data.uint32 = std::strcmp(key, PMIX_LOCAL_RANK) == 0 ? 0 : 2;
  return PMIX_SUCCESS;
}

pmix_status_t PMIx_Get_nb(const pmix_proc_t* /*process*/, const char* /*key*/,
                          const pmix_info_t* /*info*/, size_t /*count*/, pmix_value_cbfunc_t take,
                          void* kept) {
  static int asked = 0;
  const bool is_known = asked++ >= std::atoi(std::getenv("RONDO_TEST_PMIX_UNKNOWN"));
  std::thread([=] {
    char text[] = "a place";
    pmix_value_t value{};
    value.type = PMIX_STRING;
    value.data.string = text;
    take(is_known ? PMIX_SUCCESS : PMIX_ERR_NOT_FOUND, is_known ? &value : nullptr, kept);
  }).detach();
  return PMIX_SUCCESS;
}

}  // extern "C"
