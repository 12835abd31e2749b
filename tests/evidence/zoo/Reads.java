// SPDX-License-Identifier: Apache-2.0
public class Reads {
    public static void main(String[] arguments) throws Exception {
        System.out.print("Enter: ");
        System.in.read();
    }
}
