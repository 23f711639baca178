// The chapters, in order.
import {chapter as bill} from "./bill.js";
import {chapter as machine} from "./machine.js";
import {chapter as ring} from "./ring.js";

export const chapters = [ring, bill, machine];
