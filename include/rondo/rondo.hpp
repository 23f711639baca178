// All of rondo's C++ interface.
#pragma once

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "rondo/log.hpp"
#include "rondo/memory.hpp"
#include "rondo/status.hpp"
#include "rondo/types.hpp"
